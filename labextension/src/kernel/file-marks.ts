// Marks of suspended and parked kernels in lists of files. JupyterLab itself shows the same dot for every kernel.

import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { PathExt } from '@jupyterlab/coreutils';
import type { FileBrowser } from '@jupyterlab/filebrowser';
import { IFileBrowserFactory } from '@jupyterlab/filebrowser';

import { IKernelStates } from '../shared/tokens';

export const fileMarks: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:files',
  description: 'Marks suspended and parked kernels in lists of files.',
  autoStart: true,
  requires: [IKernelStates],
  optional: [IFileBrowserFactory],
  activate: (
    _: JupyterFrontEnd,
    states: IKernelStates,
    factory: IFileBrowserFactory | null
  ) => {
    factory?.tracker.forEach(browser => follow(browser, states));
    factory?.tracker.widgetAdded.connect((_, browser) =>
      follow(browser, states)
    );
  }
};

function follow(browser: FileBrowser, states: IKernelStates): void {
  const update = () => mark(browser, states);
  states.changed.connect(update);
  // A list gives the nodes of its files to others whenever it changes, and tells nobody.
  const observer = new MutationObserver(update);
  observer.observe(browser.node, {
    subtree: true,
    childList: true,
    attributeFilter: ['class']
  });
  browser.disposed.connect(() => {
    observer.disconnect();
    states.changed.disconnect(update);
  });
  update();
}

/** Let each file with a kernel that JupyterLab marks as running have the kernel's state as an attribute, by which it is styled. */
function mark(browser: FileBrowser, states: IKernelStates): void {
  const { services } = browser.model.manager;
  const folder = services.contents.localPath(browser.model.path);
  const known = new Map(states.all().map(({ path, state }) => [path, state]));
  const items = browser.node.querySelectorAll<HTMLElement>(
    '.jp-DirListing-item.jp-mod-running, .jp-DirListing-item[data-gpuckpt]'
  );
  items.forEach(item => {
    const name = item.querySelector('.jp-DirListing-itemText')?.textContent;
    const path = PathExt.join(folder, name ?? '');
    const state = item.classList.contains('jp-mod-running')
      ? known.get(path)
      : undefined;
    if (state) {
      item.dataset.gpuckpt = state;
    } else {
      delete item.dataset.gpuckpt;
    }
  });
}
