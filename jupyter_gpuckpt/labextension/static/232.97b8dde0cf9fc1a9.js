"use strict";(self.rspackChunkjupyter_gpuckpt=self.rspackChunkjupyter_gpuckpt||[]).push([[232],{475(e,t,r){var o=r(601),n=r.n(o),a=r(314),p=(r.n(a))()(n());p.push([e.id,`.jp-GpuCkptChip {
  display: flex;
  align-items: center;
}

.jp-GpuCkptChip-content {
  display: inline-flex;
  gap: 6px;
  padding: 0 8px;
  border: var(--jp-border-width) solid var(--jp-border-color1);
  border-radius: 9px;
  color: var(--jp-ui-font-color1);
  font-size: var(--jp-ui-font-size0);
  line-height: 16px;
  white-space: nowrap;
}

.jp-GpuCkptChip-content[data-state='running'],
.jp-GpuCkptChip-content[data-state='unmanaged'] {
  border-color: transparent;
  color: var(--jp-ui-font-color2);
}

.jp-GpuCkptChip-content[data-state='suspended'] {
  border-color: var(--jp-warn-color1);
  background: var(--jp-warn-color3);
  color: #000;
}

.jp-GpuCkptChip-content[data-state='lost'] {
  border-color: var(--jp-error-color1);
  color: var(--jp-error-color1);
}

.jp-GpuCkptChip-progress {
  color: var(--jp-ui-font-color2);
  font-variant-numeric: tabular-nums;
}

.jp-GpuCkptBanner {
  display: flex;
  align-items: center;
  gap: 12px;
  box-sizing: border-box;

  /* The content header gives no height by itself. */
  min-height: 36px;
  padding: 4px 12px;
  border-bottom: var(--jp-border-width) solid var(--jp-border-color2);
  background: var(--jp-layout-color2);
  color: var(--jp-ui-font-color1);
  font-size: var(--jp-ui-font-size1);
}

.jp-GpuCkptBanner.lm-mod-hidden {
  display: none;
}

.jp-GpuCkptDetails pre {
  max-height: 40vh;
  padding: 8px;
  overflow: auto;
  background: var(--jp-layout-color2);
  color: var(--jp-ui-font-color1);
  font-family: var(--jp-code-font-family);
  font-size: var(--jp-code-font-size);
}

.jp-GpuCkptDetails-code {
  color: var(--jp-ui-font-color2);
}
`,""]),r.d(t,{},{A:p})},314(e){e.exports=function(e){var t=[];return t.toString=function(){return this.map(function(t){var r="",o=void 0!==t[5];return t[4]&&(r+="@supports (".concat(t[4],") {")),t[2]&&(r+="@media ".concat(t[2]," {")),o&&(r+="@layer".concat(t[5].length>0?" ".concat(t[5]):""," {")),r+=e(t),o&&(r+="}"),t[2]&&(r+="}"),t[4]&&(r+="}"),r}).join("")},t.i=function(e,r,o,n,a){"string"==typeof e&&(e=[[null,e,void 0]]);var p={};if(o)for(var i=0;i<this.length;i++){var c=this[i][0];null!=c&&(p[c]=!0)}for(var s=0;s<e.length;s++){var u=[].concat(e[s]);o&&p[u[0]]||(void 0!==a&&(void 0===u[5]||(u[1]="@layer".concat(u[5].length>0?" ".concat(u[5]):""," {").concat(u[1],"}")),u[5]=a),r&&(u[2]&&(u[1]="@media ".concat(u[2]," {").concat(u[1],"}")),u[2]=r),n&&(u[4]?(u[1]="@supports (".concat(u[4],") {").concat(u[1],"}"),u[4]=n):u[4]="".concat(n)),t.push(u))}},t}},601(e){e.exports=function(e){return e[1]}},72(e){var t=[];function r(e){for(var r=-1,o=0;o<t.length;o++)if(t[o].identifier===e){r=o;break}return r}function o(e,o){for(var n={},a=[],p=0;p<e.length;p++){var i=e[p],c=o.base?i[0]+o.base:i[0],s=n[c]||0,u="".concat(c," ").concat(s);n[c]=s+1;var l=r(u),d={css:i[1],media:i[2],sourceMap:i[3],supports:i[4],layer:i[5]};if(-1!==l)t[l].references++,t[l].updater(d);else{var f=function(e,t){var r=t.domAPI(t);return r.update(e),function(t){t?(t.css!==e.css||t.media!==e.media||t.sourceMap!==e.sourceMap||t.supports!==e.supports||t.layer!==e.layer)&&r.update(e=t):r.remove()}}(d,o);o.byIndex=p,t.splice(p,0,{identifier:u,updater:f,references:1})}a.push(u)}return a}e.exports=function(e,n){var a=o(e=e||[],n=n||{});return function(e){e=e||[];for(var p=0;p<a.length;p++){var i=r(a[p]);t[i].references--}for(var c=o(e,n),s=0;s<a.length;s++){var u=r(a[s]);0===t[u].references&&(t[u].updater(),t.splice(u,1))}a=c}}},659(e){var t={};e.exports=function(e,r){var o=function(e){if(void 0===t[e]){var r=document.querySelector(e);if(window.HTMLIFrameElement&&r instanceof window.HTMLIFrameElement)try{r=r.contentDocument.head}catch(e){r=null}t[e]=r}return t[e]}(e);if(!o)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");o.appendChild(r)}},540(e){e.exports=function(e){var t=document.createElement("style");return e.setAttributes(t,e.attributes),e.insert(t,e.options),t}},56(e,t,r){e.exports=function(e){var t=r.nc;t&&e.setAttribute("nonce",t)}},206(e){e.exports=function(e){if("u"<typeof document)return{update:function(){},remove:function(){}};var t=e.insertStyleElement(e);return{update:function(r){var o,n,a;o="",r.supports&&(o+="@supports (".concat(r.supports,") {")),r.media&&(o+="@media ".concat(r.media," {")),(n=void 0!==r.layer)&&(o+="@layer".concat(r.layer.length>0?" ".concat(r.layer):""," {")),o+=r.css,n&&(o+="}"),r.media&&(o+="}"),r.supports&&(o+="}"),(a=r.sourceMap)&&"u">typeof btoa&&(o+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(a))))," */")),e.styleTagTransform(o,t,e.options)},remove:function(){var e;null===(e=t).parentNode||e.parentNode.removeChild(e)}}}},113(e){e.exports=function(e,t){if(t.styleSheet)t.styleSheet.cssText=e;else{for(;t.firstChild;)t.removeChild(t.firstChild);t.appendChild(document.createTextNode(e))}}},579(e,t,r){var o=r(72),n=r.n(o),a=r(206),p=r.n(a),i=r(659),c=r.n(i),s=r(56),u=r.n(s),l=r(540),d=r.n(l),f=r(113),v=r.n(f),h=r(475),m={};m.styleTagTransform=v(),m.setAttributes=u(),m.insert=c().bind(null,"head"),m.domAPI=p(),m.insertStyleElement=d(),n()(h.A,m),h.A&&h.A.locals&&h.A.locals}}]);