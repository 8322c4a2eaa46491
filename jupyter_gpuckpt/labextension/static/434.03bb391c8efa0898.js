"use strict";(self.rspackChunkjupyter_gpuckpt=self.rspackChunkjupyter_gpuckpt||[]).push([[434],{8475(p,t,o){var e=o(1601),r=o.n(e),a=o(6314),n=(o.n(a))()(r());n.push([p.id,`/* Said by screen readers and not drawn. */
.jp-GpuCkpt-spoken {
  position: absolute;
  width: 1px;
  height: 1px;
  overflow: hidden;
  clip-path: inset(50%);
  white-space: nowrap;
}

.jp-GpuCkptLink {
  padding: 0 4px;
  border: none;
  background: none;
  color: var(--jp-content-link-color);
  font-size: inherit;
  cursor: pointer;
}

.jp-GpuCkptLink:hover {
  text-decoration: underline;
}

/* The split button. */
.jp-GpuCkptButton {
  display: flex;
}

.jp-GpuCkptButton jp-button[aria-disabled='true'] {
  opacity: 0.3;
  cursor: default;
}

.jp-GpuCkptButton .jp-GpuCkptButton-menu {
  min-width: 0;
  margin-left: -4px;
}

.jp-GpuCkptButton .jp-GpuCkptButton-menu svg {
  width: 12px;
}

/* The chip. The state's colors are those of the panel, too. */
.jp-GpuCkptChip {
  display: flex;
  align-items: center;
}

.jp-GpuCkptChip-content,
.jp-GpuCkptState {
  padding: 0 8px;
  border: var(--jp-border-width) solid var(--jp-border-color1);
  border-radius: 9px;
  background: none;
  color: var(--jp-ui-font-color1);
  font-family: var(--jp-ui-font-family);
  font-size: var(--jp-ui-font-size0);
  line-height: 16px;
  white-space: nowrap;
}

.jp-GpuCkptChip .jp-GpuCkptChip-content {
  border-radius: 9px;
  cursor: pointer;
}

.jp-GpuCkptChip-content:hover {
  background: var(--jp-layout-color2);
}

.jp-GpuCkptChip-content:focus-visible,
.jp-GpuCkptSessions button:focus-visible,
.jp-GpuCkptLink:focus-visible {
  outline: 2px solid var(--jp-brand-color1);
  outline-offset: 1px;
}

.jp-GpuCkptChip-content[data-state='running'],
.jp-GpuCkptChip-content[data-state='unmanaged'] {
  border-color: transparent;
}

[data-state='parked']:is(.jp-GpuCkptChip-content, .jp-GpuCkptState) {
  border-color: var(--jp-info-color1);
}

[data-state='suspended']:is(.jp-GpuCkptChip-content, .jp-GpuCkptState) {
  border-color: var(--jp-warn-color1);
}

[data-state='lost']:is(.jp-GpuCkptChip-content, .jp-GpuCkptState) {
  border-color: var(--jp-error-color1);
}

.jp-GpuCkptChip-progress {
  font-variant-numeric: tabular-nums;
}

/* The notice above a suspended notebook. */
.jp-GpuCkptBanner {
  border-bottom: var(--jp-border-width) solid var(--jp-border-color2);
  background: var(--jp-layout-color2);
  color: var(--jp-ui-font-color1);
  font-size: var(--jp-ui-font-size1);
}

.jp-GpuCkptBanner-content {
  display: flex;
  flex-wrap: wrap;
  align-items: center;
  gap: 8px;
  box-sizing: border-box;
  min-height: 36px;
  padding: 4px 12px;
}

.jp-GpuCkptBanner.lm-mod-hidden {
  display: none;
}

.jp-GpuCkptBanner-text {
  flex: 1 1 240px;
}

.jp-GpuCkptBanner-problem {
  color: var(--jp-error-color0);
}

.jp-GpuCkptBanner button[aria-disabled='true'] {
  opacity: 0.5;
}

/* Jupyter's own indicator has no sign for a suspended kernel; the chip beside it says so. */
.jp-mod-gpuckpt-suspended
  :is(.jp-Notebook-ExecutionIndicator, [data-jp-item-name='kernelStatus']) {
  visibility: hidden;
}

/* The status bar. */
.jp-GpuCkptStatus-button {
  display: flex;
  align-items: center;
  gap: 4px;
  height: 100%;
  padding: 0 6px;
  border: none;
  background: none;
  color: inherit;
  font: inherit;
  cursor: pointer;
}

/* The Running panel. */
.jp-GpuCkptRunning {
  display: flex;
  gap: 6px;
}

.jp-GpuCkptRunning-name {
  overflow: hidden;
  text-overflow: ellipsis;
}

/* Above lists of files: the way back to suspended sessions. */
.jp-GpuCkptWaiting {
  padding: 4px 8px;
}

.jp-GpuCkptWaiting .jp-GpuCkptLink {
  max-width: 100%;
  overflow: hidden;
  font-family: var(--jp-ui-font-family);
  font-size: var(--jp-ui-font-size1);
  text-overflow: ellipsis;
  white-space: nowrap;
}

/* In lists of files: a kernel that does not run has no dot. */
.jp-DirListing-item[data-gpuckpt='suspended'] .jp-DirListing-itemIcon::before {
  color: var(--jp-ui-font-color2);
  content: '\\275A\\275A';
  content: '\\275A\\275A' / attr(data-gpuckpt);
}

.jp-DirListing-item[data-gpuckpt='parked'] .jp-DirListing-itemIcon::before {
  content: '\\25CB';
  content: '\\25CB' / attr(data-gpuckpt);
}
`,""]),o.d(t,{},{A:n})},3461(p,t,o){var e=o(1601),r=o.n(e),a=o(6314),n=(o.n(a))()(r());n.push([p.id,`.jp-GpuCkptDetails pre {
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

.jp-GpuCkptDialog {
  max-width: 640px;
  color: var(--jp-ui-font-color1);
}

.jp-GpuCkptDialog-lines {
  max-height: 30vh;
  margin: 0;
  padding-left: 20px;
  overflow: auto;
  overflow-wrap: anywhere;
}

.jp-Dialog-content:has(.jp-GpuCkptForm) {
  max-height: 90vh;
}

.jp-GpuCkptForm {
  display: flex;
  flex-direction: column;
  gap: 8px;
  width: 520px;
  max-width: 100%;
}

.jp-GpuCkptForm-text {
  display: grid;
  grid-template-columns: 150px 1fr;
  gap: 8px;
  align-items: center;
}

.jp-GpuCkptForm fieldset {
  display: flex;
  flex-wrap: wrap;
  gap: 4px 16px;
  margin: 0;
  padding: 4px 8px 8px;
  border: var(--jp-border-width) solid var(--jp-border-color2);
}

.jp-GpuCkptForm p {
  margin: 0;
}

.jp-GpuCkptForm-note {
  color: var(--jp-ui-font-color2);
}

/* It is in sight in a low window, too. */
.jp-GpuCkptForm-told {
  position: sticky;
  bottom: 0;
  min-height: 3em;
  background: var(--jp-layout-color1);
  overflow-wrap: anywhere;
}

.jp-GpuCkptLine {
  padding: 8px;
  background: var(--jp-layout-color2);
  color: var(--jp-ui-font-color1);
  font-family: var(--jp-code-font-family);
  overflow-wrap: anywhere;
  white-space: pre-wrap;
}

.jp-GpuCkptNote textarea {
  box-sizing: border-box;
  width: 100%;
  min-width: 320px;
  resize: vertical;
}

.jp-GpuCkptTable {
  width: 100%;
  margin: 8px 0;
  border-collapse: collapse;
  font-size: var(--jp-ui-font-size1);
}

.jp-GpuCkptTable caption {
  padding: 4px 0;
  font-weight: 600;
  text-align: left;
}

.jp-GpuCkptTable th,
.jp-GpuCkptTable td {
  padding: 3px 8px;
  border-bottom: var(--jp-border-width) solid var(--jp-border-color2);
  text-align: left;
  vertical-align: top;
}

.jp-GpuCkptTable td {
  overflow-wrap: break-word;
}

.jp-GpuCkptTable th[scope='row'] {
  font-family: var(--jp-code-font-family);
  font-weight: normal;
}

.jp-GpuCkptTable-size {
  color: var(--jp-ui-font-color2);
  white-space: nowrap;
}

.jp-GpuCkptFacts {
  display: grid;
  grid-template-columns: max-content 1fr;
  gap: 4px 16px;
  margin: 0;
}

.jp-GpuCkptFacts dt {
  color: var(--jp-ui-font-color2);
}

.jp-GpuCkptFacts dd {
  margin: 0;
  overflow-wrap: anywhere;
  white-space: pre-wrap;
}
`,""]),o.d(t,{},{A:n})},8447(p,t,o){var e=o(1601),r=o.n(e),a=o(6314),n=(o.n(a))()(r());n.push([p.id,`/* The panel "Sessions". */
.jp-GpuCkptSessions {
  min-width: 240px;
  padding: 0 8px 16px;
  overflow-y: auto;
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  font-size: var(--jp-ui-font-size1);
}

.jp-GpuCkptSessions ul,
.jp-GpuCkptSessions ol {
  margin: 0;
  padding: 0;
  list-style: none;
}

.jp-GpuCkptSessions p {
  margin: 4px 0;
}

.jp-GpuCkptSessions-header {
  display: flex;
  align-items: center;
  justify-content: space-between;
}

.jp-GpuCkptSessions h2 {
  margin: 8px 4px;
  font-size: var(--jp-ui-font-size1);
  font-weight: 600;
}

.jp-GpuCkptSessions h3 {
  margin: 12px 0 4px;
  padding: 4px;
  border-bottom: var(--jp-border-width) solid var(--jp-border-color2);
  font-size: var(--jp-ui-font-size0);
  font-weight: 600;
  letter-spacing: 1px;
  text-transform: uppercase;
}

.jp-GpuCkptSessions h4 {
  flex: 1 1 auto;
  min-width: 0;
  margin: 0;
  font-size: var(--jp-ui-font-size1);
  font-weight: 600;
}

.jp-GpuCkptSessions-none {
  padding-left: 4px;
  color: var(--jp-ui-font-color2);
}

.jp-GpuCkptSessions-problem {
  padding: 6px 8px;
  border-left: 3px solid var(--jp-error-color1);
  background: var(--jp-layout-color2);
}

.jp-GpuCkptKernel {
  padding: 6px 4px 10px;
}

.jp-GpuCkptKernel + .jp-GpuCkptKernel {
  border-top: var(--jp-border-width) solid var(--jp-border-color2);
}

.jp-GpuCkptKernel-head,
.jp-GpuCkptSnapshot-head {
  display: flex;
  align-items: center;
  gap: 6px;
}

.jp-GpuCkptKernel-name {
  display: flex;
  align-items: center;
  gap: 2px;
  max-width: 100%;
  padding: 2px;
  border: none;
  background: none;
  color: inherit;
  font: inherit;
  cursor: pointer;
}

.jp-GpuCkptKernel-name span:last-child,
.jp-GpuCkptSnapshot-title {
  overflow: hidden;
  text-overflow: ellipsis;
  white-space: nowrap;
}

.jp-GpuCkptKernel-usage,
.jp-GpuCkptSnapshot-facts {
  color: var(--jp-ui-font-color2);
}

.jp-GpuCkptKernel-usage {
  padding: 2px 4px;
}

.jp-GpuCkptKernel-reason {
  padding: 2px 6px;
  border-left: 3px solid var(--jp-warn-color1);
  overflow-wrap: anywhere;
}

.jp-GpuCkptProgress {
  display: flex;
  align-items: center;
  gap: 8px;
  padding: 2px 4px;
}

.jp-GpuCkptProgress progress {
  flex: 1 1 auto;
  min-width: 60px;
  height: 6px;
  accent-color: var(--jp-brand-color1);
}

.jp-GpuCkptActions {
  display: flex;
  flex-wrap: wrap;
  gap: 4px;
  padding: 4px 0 2px;
}

.jp-GpuCkptAction {
  display: inline-flex;
  align-items: center;
  gap: 4px;
  padding: 1px 8px;
  border: var(--jp-border-width) solid var(--jp-border-color1);
  border-radius: var(--jp-border-radius);
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  font-family: var(--jp-ui-font-family);
  font-size: var(--jp-ui-font-size0);
  line-height: 20px;
  cursor: pointer;
}

.jp-GpuCkptAction:hover {
  background: var(--jp-layout-color2);
}

.jp-GpuCkptAction[aria-disabled='true'] {
  opacity: 0.5;
  cursor: default;
}

.jp-GpuCkptAction.jp-mod-menu {
  padding: 0 4px;
  border-color: transparent;
  background: none;
  font-weight: 600;
}

.jp-GpuCkptAction svg {
  width: 14px;
  height: 14px;
}

/* A line with a dot for each snapshot. */
.jp-GpuCkptTimeline {
  position: relative;
}

.jp-GpuCkptSnapshot {
  position: relative;
  padding: 6px 0 6px 20px;
}

.jp-GpuCkptSnapshot::before {
  position: absolute;
  top: 0;
  bottom: 0;
  left: 9px;
  width: 2px;
  background: var(--jp-border-color2);
  content: '';
}

.jp-GpuCkptSnapshot:first-child::before {
  top: 14px;
}

.jp-GpuCkptSnapshot:last-child::before {
  bottom: calc(100% - 14px);
}

.jp-GpuCkptSnapshot::after {
  position: absolute;
  top: 10px;
  left: 5px;
  width: 6px;
  height: 6px;
  border: 2px solid var(--jp-brand-color1);
  border-radius: 50%;
  background: var(--jp-layout-color1);
  content: '';
}

.jp-GpuCkptSnapshot[data-pinned='true']::after {
  background: var(--jp-brand-color1);
}

.jp-GpuCkptSnapshot-title {
  font-weight: 600;
}

.jp-GpuCkptSnapshot-head .jp-mod-menu {
  margin-left: auto;
}

.jp-GpuCkptSnapshot-facts {
  display: flex;
  flex-wrap: wrap;
  gap: 2px 8px;
  font-size: var(--jp-ui-font-size0);
}

.jp-GpuCkptSnapshot-facts > * {
  white-space: nowrap;
}

.jp-GpuCkptSnapshot-note {
  padding-left: 6px;
  border-left: 2px solid var(--jp-border-color1);
  white-space: pre-wrap;
  overflow-wrap: anywhere;
}

.jp-GpuCkptCause {
  padding: 0 6px;
  border: var(--jp-border-width) solid var(--jp-border-color2);
  border-radius: 8px;
}

.jp-GpuCkptCause[data-needed] {
  border-color: var(--jp-warn-color1);
}

/* New bytes in front of shared ones. */
.jp-GpuCkptShared {
  height: 5px;
  margin: 4px 0;
  border-radius: 2px;
  background: var(--jp-border-color1);
  overflow: hidden;
}

.jp-GpuCkptShared-new {
  display: block;
  height: 100%;
  background: var(--jp-brand-color1);
}

.jp-GpuCkptVariables {
  display: flex;
  flex-wrap: wrap;
  gap: 2px 8px;
  color: var(--jp-ui-font-color2);
  font-size: var(--jp-ui-font-size0);
}

.jp-GpuCkptVariables code {
  color: var(--jp-ui-font-color1);
}

/* The picture of the store. */
.jp-GpuCkptStore {
  padding: 0 4px;
}

.jp-GpuCkptStore > h3 {
  margin-inline: -4px;
}

.jp-GpuCkptStore > .jp-GpuCkptSessions-none {
  padding-inline: 0;
}

.jp-GpuCkptStore > .jp-GpuCkptAction {
  margin-bottom: 8px;
}

.jp-GpuCkptStore-quota {
  width: 100%;
}

.jp-GpuCkptStore-bar {
  display: flex;
  gap: 1px;
  height: 12px;
  border-radius: 3px;
  overflow: hidden;
}

.jp-GpuCkptStore [data-color] {
  background: var(--jp-ui-font-color3);
}

.jp-GpuCkptStore [data-color='0'] {
  background: var(--jp-brand-color1);
}

.jp-GpuCkptStore [data-color='1'] {
  background: var(--jp-warn-color1);
}

.jp-GpuCkptStore [data-color='2'] {
  background: var(--jp-success-color1);
}

.jp-GpuCkptStore [data-color='3'] {
  background: var(--jp-error-color1);
}

.jp-GpuCkptStore [data-color='4'] {
  background: var(--jp-info-color1);
}

.jp-GpuCkptStore [data-color='shared'] {
  background: repeating-linear-gradient(
    45deg,
    var(--jp-ui-font-color3) 0 2px,
    var(--jp-layout-color1) 2px 4px
  );
}

.jp-GpuCkptStore [data-color='unused'] {
  background: var(--jp-border-color2);
}

.jp-GpuCkptStore-legend li {
  display: flex;
  align-items: center;
  gap: 6px;
  padding: 2px 0;
}

.jp-GpuCkptStore-legend [data-color] {
  flex: 0 0 10px;
  height: 10px;
  border-radius: 2px;
}

.jp-GpuCkptStore-legend span:nth-child(2) {
  flex: 1 1 auto;
  overflow: hidden;
  text-overflow: ellipsis;
  white-space: nowrap;
}

/* What remotes have. */
.jp-GpuCkptRemote > .jp-GpuCkptAction {
  margin: 0 4px 4px;
}

.jp-GpuCkptRemote > .jp-GpuCkptLink {
  margin-bottom: 4px;
}

.jp-GpuCkptCause[data-upload='uploaded'] {
  border-color: var(--jp-success-color1);
}

.jp-GpuCkptCause[data-upload='uploading'] {
  border-color: var(--jp-brand-color1);
}

.jp-GpuCkptCause[data-upload='failed'] {
  border-color: var(--jp-error-color1);
}

.jp-GpuCkptCause[data-upload='remote'] {
  border-style: dashed;
}

.jp-GpuCkptRemote h4 {
  overflow: hidden;
  text-overflow: ellipsis;
  white-space: nowrap;
}

.jp-GpuCkptRemote .jp-GpuCkptLink[aria-disabled='true'] {
  opacity: 0.5;
}
`,""]),o.d(t,{},{A:n})},6314(p){p.exports=function(p){var t=[];return t.toString=function(){return this.map(function(t){var o="",e=void 0!==t[5];return t[4]&&(o+="@supports (".concat(t[4],") {")),t[2]&&(o+="@media ".concat(t[2]," {")),e&&(o+="@layer".concat(t[5].length>0?" ".concat(t[5]):""," {")),o+=p(t),e&&(o+="}"),t[2]&&(o+="}"),t[4]&&(o+="}"),o}).join("")},t.i=function(p,o,e,r,a){"string"==typeof p&&(p=[[null,p,void 0]]);var n={};if(e)for(var i=0;i<this.length;i++){var l=this[i][0];null!=l&&(n[l]=!0)}for(var s=0;s<p.length;s++){var d=[].concat(p[s]);e&&n[d[0]]||(void 0!==a&&(void 0===d[5]||(d[1]="@layer".concat(d[5].length>0?" ".concat(d[5]):""," {").concat(d[1],"}")),d[5]=a),o&&(d[2]&&(d[1]="@media ".concat(d[2]," {").concat(d[1],"}")),d[2]=o),r&&(d[4]?(d[1]="@supports (".concat(d[4],") {").concat(d[1],"}"),d[4]=r):d[4]="".concat(r)),t.push(d))}},t}},1601(p){p.exports=function(p){return p[1]}},5072(p){var t=[];function o(p){for(var o=-1,e=0;e<t.length;e++)if(t[e].identifier===p){o=e;break}return o}function e(p,e){for(var r={},a=[],n=0;n<p.length;n++){var i=p[n],l=e.base?i[0]+e.base:i[0],s=r[l]||0,d="".concat(l," ").concat(s);r[l]=s+1;var u=o(d),c={css:i[1],media:i[2],sourceMap:i[3],supports:i[4],layer:i[5]};if(-1!==u)t[u].references++,t[u].updater(c);else{var j=function(p,t){var o=t.domAPI(t);return o.update(p),function(t){t?(t.css!==p.css||t.media!==p.media||t.sourceMap!==p.sourceMap||t.supports!==p.supports||t.layer!==p.layer)&&o.update(p=t):o.remove()}}(c,e);e.byIndex=n,t.splice(n,0,{identifier:d,updater:j,references:1})}a.push(d)}return a}p.exports=function(p,r){var a=e(p=p||[],r=r||{});return function(p){p=p||[];for(var n=0;n<a.length;n++){var i=o(a[n]);t[i].references--}for(var l=e(p,r),s=0;s<a.length;s++){var d=o(a[s]);0===t[d].references&&(t[d].updater(),t.splice(d,1))}a=l}}},7659(p){var t={};p.exports=function(p,o){var e=function(p){if(void 0===t[p]){var o=document.querySelector(p);if(window.HTMLIFrameElement&&o instanceof window.HTMLIFrameElement)try{o=o.contentDocument.head}catch(p){o=null}t[p]=o}return t[p]}(p);if(!e)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");e.appendChild(o)}},540(p){p.exports=function(p){var t=document.createElement("style");return p.setAttributes(t,p.attributes),p.insert(t,p.options),t}},5056(p,t,o){p.exports=function(p){var t=o.nc;t&&p.setAttribute("nonce",t)}},7825(p){p.exports=function(p){if("u"<typeof document)return{update:function(){},remove:function(){}};var t=p.insertStyleElement(p);return{update:function(o){var e,r,a;e="",o.supports&&(e+="@supports (".concat(o.supports,") {")),o.media&&(e+="@media ".concat(o.media," {")),(r=void 0!==o.layer)&&(e+="@layer".concat(o.layer.length>0?" ".concat(o.layer):""," {")),e+=o.css,r&&(e+="}"),o.media&&(e+="}"),o.supports&&(e+="}"),(a=o.sourceMap)&&"u">typeof btoa&&(e+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(a))))," */")),p.styleTagTransform(e,t,p.options)},remove:function(){var p;null===(p=t).parentNode||p.parentNode.removeChild(p)}}}},1113(p){p.exports=function(p,t){if(t.styleSheet)t.styleSheet.cssText=p;else{for(;t.firstChild;)t.removeChild(t.firstChild);t.appendChild(document.createTextNode(p))}}},5305(p,t,o){var e=o(5072),r=o.n(e),a=o(7825),n=o.n(a),i=o(7659),l=o.n(i),s=o(5056),d=o.n(s),u=o(540),c=o.n(u),j=o(1113),f=o.n(j),h=o(8475),k={};k.styleTagTransform=f(),k.setAttributes=d(),k.insert=l().bind(null,"head"),k.domAPI=n(),k.insertStyleElement=c(),r()(h.A,k),h.A&&h.A.locals&&h.A.locals;var g=o(8447),x={};x.styleTagTransform=f(),x.setAttributes=d(),x.insert=l().bind(null,"head"),x.domAPI=n(),x.insertStyleElement=c(),r()(g.A,x),g.A&&g.A.locals&&g.A.locals;var v=o(3461),C={};C.styleTagTransform=f(),C.setAttributes=d(),C.insert=l().bind(null,"head"),C.domAPI=n(),C.insertStyleElement=c(),r()(v.A,C),v.A&&v.A.locals&&v.A.locals}}]);