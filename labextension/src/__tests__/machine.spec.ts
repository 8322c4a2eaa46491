// What is told of the machine: that it goes, and that another one has taken a session over.

import { Dialog, InputDialog, Notification } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { Contents } from '@jupyterlab/services';
import { MessageLoop } from '@lumino/messaging';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { GpuCkptApi } from '../shared/api';
import { LostSessionBanner } from '../kernel/lost-session';
import { MachineNotices } from '../machine/machine-notices';
import { KernelStates } from '../shared/kernel-states';
import { countdown, NoticeBanner } from '../machine/notice-banner';
import type { NoticeView } from '../shared/records';
import { NOTICE_EVENT_SCHEMA } from '../shared/server-events';
import { aKernel, FakeEvents, FakeServer } from './fakes';

let events: FakeEvents;
let server: FakeServer;
let widget: Widget;

function attach(made: Widget): void {
  widget = made;
  Widget.attach(widget, document.body);
}

async function drawn(): Promise<void> {
  MessageLoop.flush();
  await new Promise(resolve => setTimeout(resolve, 5));
}

async function shown(text: string, within = widget.node): Promise<void> {
  while (!within.textContent?.includes(text)) {
    await drawn();
  }
}

function button(label: string): HTMLButtonElement {
  const found = Array.from(widget.node.querySelectorAll('button')).find(
    ({ textContent }) => textContent === label
  );
  return found as HTMLButtonElement;
}

beforeEach(() => {
  events = new FakeEvents();
  server = new FakeServer();
});

afterEach(() => {
  widget.dispose();
  Notification.dismiss();
});

describe('the banner of a machine that goes', () => {
  let now: number;
  let notices: MachineNotices;

  function aNotice(changes: Partial<NoticeView> = {}): NoticeView {
    return {
      id: 'aws-spot:1',
      kind: 'reclaim',
      deadline: null,
      seconds_left: 105,
      is_saving: false,
      disk_survives: false,
      is_due: false,
      withdrawn: false,
      ...changes
    };
  }

  const tell = (changes: Partial<NoticeView> = {}) =>
    events.emit({ ...aNotice(changes), schema_id: NOTICE_EVENT_SCHEMA });

  async function make(...told: NoticeView[]): Promise<void> {
    now = 1e6;
    server.on('GET notices', { notices: told });
    const api = new GpuCkptApi(server.settings);
    notices = new MachineNotices(api, events.stream, () => now);
    attach(new NoticeBanner(notices));
    await notices.refresh();
  }

  it('counts down, and says what is done and what is lost', async () => {
    await make();
    expect(widget.isHidden).toBe(true);
    tell();
    expect(widget.isHidden).toBe(false);
    await shown('This machine will be shut down in 1:45.');
    await shown('Sessions will be suspended before that. Its disk is lost');
    now += 41_000;
    await shown('in 1:04.'); // by itself, within a second
    tell({ is_saving: true });
    await shown(
      'Sessions are being saved, and will be suspended shortly before that.'
    );
    tell({ seconds_left: 30, is_due: true, disk_survives: true });
    await shown('in 0:30. Sessions are being suspended. Its disk is kept.');
    now += 31_000;
    tell({ id: 'other', seconds_left: 5000 });
    await shown('at any moment');
  });

  it('shows the nearest, and goes when the machine stays', async () => {
    await make(aNotice({ seconds_left: 7384 }), aNotice({ id: 'b' }));
    await shown('in 1:45.');
    tell({ id: 'b', withdrawn: true });
    await shown('in 2:03:04.');
    tell({ withdrawn: true });
    expect(widget.isHidden).toBe(true);
  });

  it('says that a machine may go', async () => {
    await make(aNotice({ kind: 'rebalance', seconds_left: null }));
    await shown(
      'may be shut down soon. Sessions are being saved and keep running.'
    );
  });

  it('is not there where the server knows no notices', async () => {
    await make();
    server.on('GET notices', { status: 404, body: '<html>' });
    expect(await notices.refresh()).toBe(true);
    server.on('GET notices', new TypeError('away'));
    expect(await notices.refresh()).toBe(false);
    expect(widget.isHidden).toBe(true);
  });

  it('writes times as clocks do', () => {
    expect([0, 0.2, 59.5, 61, 3600].map(countdown)).toEqual([
      '0:00',
      '0:01',
      '1:00',
      '1:01',
      '1:00:00'
    ]);
  });
});

describe('a notebook whose session was taken over', () => {
  const save = jest.fn(async () => undefined);
  const setPath = jest.fn(async () => undefined);
  const files = new Set<string>();
  const contents = {
    driveName: () => '',
    localPath: (path: string) => path,
    get: async (path: string) => {
      if (!files.has(path)) {
        throw new Error('404');
      }
    },
    save: async (path: string) => void files.add(path)
  } as unknown as Contents.IManager;
  let panel: NotebookPanel;
  let states: KernelStates;

  const isLost = () =>
    events.tell(aKernel({ taken_over: 'Taken over by desk.' }));

  beforeEach(async () => {
    save.mockClear();
    setPath.mockClear();
    files.clear();
    const sender = {};
    const sessionContext = {
      session: { kernel: { id: 'k' }, setPath, setName: async () => undefined },
      kernelChanged: new Signal(sender),
      statusChanged: new Signal(sender),
      connectionStatusChanged: new Signal(sender)
    };
    panel = {
      title: { label: 'a.ipynb' },
      context: {
        save,
        path: 'work/a.ipynb',
        sessionContext,
        model: { toJSON: () => ({}) }
      },
      disposed: new Signal(sender),
      sessionContext
    } as unknown as NotebookPanel;
    server.on('GET kernels', { kernels: [aKernel()] });
    states = new KernelStates(new GpuCkptApi(server.settings), events.stream);
    await states.refreshAll();
    const api = new GpuCkptApi(server.settings);
    attach(new LostSessionBanner(panel, states, api, contents));
  });

  afterEach(() => {
    jest.restoreAllMocks();
  });

  const answers = (...values: (string | null)[]) => {
    const asked = jest.spyOn(InputDialog, 'getText');
    values.forEach(value =>
      asked.mockResolvedValueOnce({
        button: { accept: value !== null },
        value
      } as never)
    );
    return asked;
  };

  it('is not saved, until its user says where', async () => {
    expect(widget.isHidden).toBe(true);
    await panel.context.save();
    expect(save).toHaveBeenCalledTimes(1);
    isLost();
    expect(widget.isHidden).toBe(false);
    await shown('Taken over by desk. This notebook is not saved until');
    // The periodic save of JupyterLab takes this for a user who has cancelled it.
    const refusal = { name: 'ModalCancelError' };
    await expect(panel.context.save()).rejects.toMatchObject(refusal);
    await expect(panel.context.save()).rejects.toMatchObject(refusal);
    expect(Notification.manager.count).toBe(1);
    // What happens to the kernel decides nothing, nor does a choice that does not arrive.
    events.tell(aKernel({ state: 'suspended', taken_over: 'Taken over.' }));
    button('Keep Saving Here').click();
    await shown('Taken over by desk.');
    await expect(panel.context.save()).rejects.toMatchObject(refusal);
    const asked = answers(null);
    button('Save as a Copy…').click();
    await drawn();
    expect(asked.mock.calls[0]![0].text).toBe('work/a-copy.ipynb');
    expect(setPath).not.toHaveBeenCalled();
    expect(save).toHaveBeenCalledTimes(1);
    server
      .on('POST kernels/k/keep_saving', aKernel())
      .on('GET kernels/k', aKernel());
    button('Keep Saving Here').click();
    while (!widget.isHidden) {
      await drawn();
    }
    expect(server.requests).toContain('POST kernels/k/keep_saving');
    await panel.context.save();
    expect(save).toHaveBeenCalledTimes(2);
    // It may be taken over once more.
    isLost();
    expect(widget.isHidden).toBe(false);
  });

  it('goes on in a copy, with its kernel', async () => {
    isLost();
    await shown('Taken over by desk.');
    files.add('work/a-copy.ipynb');
    answers('work/a-copy.ipynb', 'b');
    server
      .on('POST kernels/k/keep_saving', aKernel())
      .on('GET kernels/k', aKernel());
    button('Save as a Copy…').click();
    await shown('work/a-copy.ipynb exists already', document.body);
    Dialog.tracker.forEach(dialog => dialog.resolve(0));
    while (!widget.isHidden) {
      await drawn();
    }
    expect(setPath.mock.calls).toEqual([['b.ipynb']]);
    expect(save).toHaveBeenCalledTimes(1);
    await panel.context.save();
    expect(save).toHaveBeenCalledTimes(2);
  });

  it('is saved as a copy without a kernel, too, and stays as it is', async () => {
    isLost();
    await shown('Taken over by desk.');
    Object.assign(panel.sessionContext, { session: null });
    answers('b.ipynb');
    button('Save as a Copy…').click();
    while (!files.has('b.ipynb')) {
      await drawn();
    }
    const { message } = Notification.manager.notifications[0];
    expect(message).toContain('open the copy to continue there');
    await expect(panel.context.save()).rejects.toThrow('is not saved');
    expect(save).not.toHaveBeenCalled();
  });

  it('keeps its mark when it gets another kernel', async () => {
    isLost();
    const { kernel } = panel.sessionContext.session!;
    Object.assign(kernel!, { id: 'new' });
    events.tell(aKernel({ kernel_id: 'new', taken_over: 'Taken over.' }));
    await shown('Taken over. This notebook');
    server
      .on('POST kernels/new/keep_saving', aKernel({ kernel_id: 'new' }))
      .on('GET kernels/new', aKernel({ kernel_id: 'new' }));
    button('Keep Saving Here').click();
    while (!widget.isHidden) {
      await drawn();
    }
  });

  it('does not depend on a kernel that is gone', async () => {
    isLost();
    await shown('Taken over by desk.');
    const gone = { message: 'It is gone.', code: 'kernel_not_found', hint: '' };
    server.on('POST kernels/k/keep_saving', {
      status: 404,
      body: JSON.stringify(gone)
    });
    button('Keep Saving Here').click();
    while (!widget.isHidden) {
      await drawn();
    }
  });

  it('is saved again when its user has chosen on another page', async () => {
    isLost();
    events.tell(aKernel());
    expect(widget.isHidden).toBe(true);
    await panel.context.save();
    expect(save).toHaveBeenCalledTimes(1);
  });

  it('is not saved by a page that is opened later', async () => {
    isLost();
    widget.dispose();
    const api = new GpuCkptApi(server.settings);
    attach(new LostSessionBanner(panel, states, api, contents));
    expect(widget.isHidden).toBe(false);
    await expect(panel.context.save()).rejects.toThrow('is not saved');
  });

  it('is saved as before when the banner has gone', async () => {
    isLost();
    widget.dispose();
    await panel.context.save();
    expect(save).toHaveBeenCalledTimes(1);
  });
});
