import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { IFileBrowserFactory } from '@jupyterlab/filebrowser';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { GpuCkptApi } from '../shared/api';
import { fileMarks } from '../kernel/file-marks';
import { KernelStates } from '../shared/kernel-states';
import { aKernel, FakeEvents, FakeServer } from './fakes';

/** A list of files, as JupyterLab draws it: all of them have a kernel. */
class FakeBrowser extends Widget {
  constructor(...names: string[]) {
    super();
    this.node.innerHTML = names
      .map(
        name =>
          `<li class="jp-DirListing-item jp-mod-running"><span class="jp-DirListing-itemText">${name}</span></li>`
      )
      .join('');
  }

  readonly model = {
    path: 'RTC:work',
    manager: {
      services: { contents: { localPath: (path: string) => path.slice(4) } }
    }
  };
}

const marks = (browser: Widget) =>
  Array.from(browser.node.querySelectorAll('li')).map(
    ({ dataset }) => dataset.gpuckpt ?? ''
  );

describe('the list of files', () => {
  it('marks suspended and parked kernels, also in a list that opens later', async () => {
    const events = new FakeEvents();
    const server = new FakeServer().on('GET kernels', {
      kernels: [
        aKernel({ path: 'work/a.ipynb', state: 'suspended' }),
        aKernel({ kernel_id: 'b', path: 'work/b.ipynb', state: 'parked' }),
        aKernel({ kernel_id: 'c', path: 'c.ipynb', state: 'suspended' })
      ]
    });
    const states = new KernelStates(
      new GpuCkptApi(server.settings),
      events.stream
    );
    await states.refreshAll();
    const first = new FakeBrowser('a.ipynb', 'b.ipynb', 'c.ipynb');
    const tracker = {
      forEach: (see: (browser: Widget) => void) => see(first),
      widgetAdded: new Signal({})
    };
    const factory = { tracker } as unknown as IFileBrowserFactory;
    await fileMarks.activate({} as JupyterFrontEnd, states, factory);
    expect(marks(first)).toEqual(['suspended', 'parked', '']);

    const second = new FakeBrowser('a.ipynb');
    tracker.widgetAdded.emit(second as never);
    events.tell(aKernel({ path: 'work/a.ipynb', state: 'resuming' }));
    expect(marks(first)[0]).toBe('resuming');
    expect(marks(second)).toEqual(['resuming']);

    // JupyterLab uses the nodes again for other files.
    first.node.children[0].className = 'jp-DirListing-item';
    await new Promise(resolve => setTimeout(resolve, 0));
    expect(marks(first)).toEqual(['', 'parked', '']);
    second.dispose();
  });
});
