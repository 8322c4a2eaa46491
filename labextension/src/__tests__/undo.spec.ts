import { Notification } from '@jupyterlab/apputils';

import { GpuCkptApi } from '../shared/api';
import { KernelStates } from '../shared/kernel-states';
import { Operations } from '../shared/operations';
import { KERNEL_ACTION_SCHEMA } from '../shared/server-events';
import { Undo } from '../snapshot/undo';
import {
  aDone,
  aKernel,
  aSnapshot,
  chosen,
  FakeEvents,
  FakeServer,
  refused
} from './fakes';
const reconnect = jest.fn();

let server: FakeServer;
let events: FakeEvents;
let states: KernelStates;
let undo: Undo;

const happened = (action: string) =>
  events.emit({
    schema_id: KERNEL_ACTION_SCHEMA,
    action,
    status: 'success',
    kernel_id: 'k'
  });

/** The notification that says so, as soon as it is there. */
async function told(text: string) {
  for (;;) {
    const found = Notification.manager.notifications.find(({ message }) =>
      message.includes(text)
    );
    if (found) {
      return found;
    }
    await new Promise(resolve => setTimeout(resolve, 5));
  }
}

async function pressUndo(text: string): Promise<void> {
  const [action] = (await told(text)).options.actions ?? [];
  expect(action.label).toBe('Undo');
  action.callback(new MouseEvent('click'));
}

beforeEach(async () => {
  events = new FakeEvents();
  server = new FakeServer()
    .on('GET kernels', { kernels: [aKernel({ path: 'work/a.ipynb' })] })
    .on('GET kernels/k', aKernel())
    .on('POST kernels/k/roll_back', aDone({ kind: 'roll_back' }));
  const api = new GpuCkptApi(server.settings);
  states = new KernelStates(api, events.stream);
  await states.refreshAll();
  const operations = new Operations(states, chosen());
  undo = new Undo(api, operations, reconnect);
  undo.follow(events.stream);
  jest.spyOn(document, 'hasFocus').mockReturnValue(true);
});

afterEach(() => {
  jest.restoreAllMocks();
  reconnect.mockClear();
  Notification.dismiss();
});

describe('undo', () => {
  it('takes a shutdown back and connects the notebook again', async () => {
    const kept = {
      kernel_id: 'k',
      kernel_name: 'python3',
      path: 'work/a.ipynb',
      ends_at: Date.now() / 1000 + 20
    };
    server
      .on('GET shut_down', { kernels: [kept] })
      .on('POST kernels/k/undo_shutdown', aKernel());
    happened('shutdown');
    const { options } = await told('Shut down the kernel of a.ipynb');
    expect(options.autoClose).toBeLessThanOrEqual(20000);
    await pressUndo('Shut down');
    while (reconnect.mock.calls.length === 0) {
      await new Promise(resolve => setTimeout(resolve, 5));
    }
    expect(server.requests).toContain('POST kernels/k/undo_shutdown');
    expect(reconnect).toHaveBeenCalledWith('work/a.ipynb', 'k');
  });

  it('says nothing on pages where nobody is', async () => {
    jest.spyOn(document, 'hasFocus').mockReturnValue(false);
    happened('shutdown');
    happened('restart');
    expect(server.requests).not.toContain('GET shut_down');
    expect(server.requests).not.toContain('GET snapshots');
  });

  it.each([
    ['was taken for a restart', 's'],
    ['an unchanged kernel had', 'older']
  ])('restores the snapshot that %s', async (_, id) => {
    const list = [
      aSnapshot({ cause: 'restart' }),
      aSnapshot({ snapshot_id: 'older' })
    ];
    server.on('GET snapshots', { snapshots: list });
    server.on('GET kernels/k', aKernel({ before_restart: id }));
    happened('restart');
    await pressUndo('Restarted the kernel of a.ipynb');
    await told('Restored a.ipynb to');
    expect(server.bodies).toContain(`{"snapshot_id":"${id}"}`);
  });

  it('offers nothing where no state was before a restart', async () => {
    server.on('GET snapshots', { snapshots: [aSnapshot()] });
    server.on('GET kernels/k', aKernel());
    happened('restart');
    await new Promise(resolve => setTimeout(resolve, 20));
    expect(server.requests).toContain('GET kernels/k');
    expect(Notification.manager.notifications).toEqual([]);
  });

  it('lets the process run on that was kept at a restart', async () => {
    server.on('GET kernels/k', aKernel({ former_kept: true }));
    server.on('POST kernels/k/undo_restart', aKernel());
    happened('restart');
    await pressUndo('Restarted the kernel of');
    await told('to its state before the restart');
    expect(server.requests).toContain('POST kernels/k/undo_restart');
    expect(server.requests).not.toContain('POST kernels/k/roll_back');
  });

  it('restores the snapshot of a process that was just saved', async () => {
    server.on('GET kernels/k', aKernel({ former_kept: true }));
    server.on(
      'POST kernels/k/undo_restart',
      refused(404, { message: 'It is saved.', code: 'kernel_not_found' })
    );
    server.on('GET snapshots', {
      snapshots: [aSnapshot({ cause: 'restart' })]
    });
    happened('restart');
    await told('Restarted the kernel of');
    server.on('GET kernels/k', aKernel({ before_restart: 's' }));
    await pressUndo('Restarted the kernel of');
    await told('Restored a.ipynb to');
    expect(server.bodies).toContain('{"snapshot_id":"s"}');
  });

  it('says why a restart cannot be undone', async () => {
    server.on('GET kernels/k', aKernel({ restart_lost: 'It is traced.' }));
    happened('restart');
    const { type } = await told('It is traced.');
    expect(type).toBe('warning');
  });

  it.each([
    [null, 'before'],
    ['asleep', 'asleep']
  ])('of a restore (saved as %s) goes back to %s', async (saved, wanted) => {
    const list = [
      aSnapshot({ snapshot_id: 'autosave', cause: 'autosave' }),
      aSnapshot({ snapshot_id: 'before', cause: 'rollback' }),
      aSnapshot({ snapshot_id: 'asleep', cause: 'idle' })
    ];
    server.on('GET snapshots', { snapshots: list });
    await undo.ofRestore(aSnapshot(), saved, false)();
    expect(server.bodies).toContain(`{"snapshot_id":"${wanted}"}`);
  });
});
