import { Notification } from '@jupyterlab/apputils';
import { CommandRegistry } from '@lumino/commands';

import { GpuCkptApi } from '../shared/api';
import type { KernelActions } from '../kernel/kernel-actions';
import { KernelStates } from '../shared/kernel-states';
import { Operations } from '../shared/operations';
import type { IUserSettings } from '../shared/tokens';
import type { Changes, KernelView, SnapshotView } from '../shared/records';
import { SnapshotActions } from '../snapshot/snapshot-actions';
import type { SnapshotAction } from '../snapshot/snapshot-commands';
import {
  addSnapshotCommands,
  snapshotActions,
  snapshotCommandIds,
  snapshotRefusal
} from '../snapshot/snapshot-commands';
import { Snapshots } from '../shared/snapshots';
import type { Undo } from '../snapshot/undo';
import {
  aDone,
  aKernel,
  anUpload,
  aSnapshot,
  chosen,
  dialog,
  FakeEvents,
  FakeServer,
  press,
  refused
} from './fakes';
const args = { snapshotId: 's' };
const unchanged: Changes = { files: [], obstacles: [] };

let server: FakeServer;
let events: FakeEvents;
let states: KernelStates;
let snapshots: Snapshots;
let commands: CommandRegistry;
const resumeInto = jest.fn();
const branchFrom = jest.fn();
const saveNotebook = jest.fn(() => Promise.resolve(true));
const now = [{ cell_type: 'raw', id: 'a', metadata: {}, source: 'now' }];
const cells = { isShared: false, read: () => now, put: jest.fn() };
const refreshLauncher = jest.fn(() => Promise.resolve());
const ofRestore = jest.fn(() => () => Promise.resolve());

function register(
  choices: Partial<IUserSettings['choices']> = {}
): CommandRegistry {
  const registry = new CommandRegistry();
  const settings = chosen(choices);
  const actions = new SnapshotActions(
    snapshots,
    states,
    new Operations(states, settings),
    {
      branchFrom,
      resumeInto,
      saveNotebook
    } as Partial<KernelActions> as KernelActions,
    { ofRestore } as Partial<Undo> as Undo,
    settings,
    refreshLauncher,
    path => (path === 'work/a.ipynb' ? cells : null)
  );
  addSnapshotCommands(
    registry,
    snapshots,
    states,
    path => path === 'busy.ipynb',
    actions
  );
  return registry;
}

const run = (action: SnapshotAction, registry = commands) =>
  registry.execute(snapshotCommandIds[action], args);

const notifications = () => Notification.manager.notifications;

beforeEach(async () => {
  events = new FakeEvents();
  jest.spyOn(performance, 'now').mockReturnValue(0);
  server = new FakeServer()
    .on('GET kernels', { kernels: [aKernel()] })
    .on('GET kernels/k', aKernel())
    .on('GET snapshots', { snapshots: [aSnapshot({ title: 'Before' })] })
    .on('GET store', { undo_delete_seconds: 60 })
    .on('GET snapshots/s/changes', unchanged)
    .on('POST kernels/k/roll_back', aDone({ kind: 'roll_back' }));
  const api = new GpuCkptApi(server.settings);
  states = new KernelStates(api, events.stream);
  snapshots = new Snapshots(api, events.stream);
  await Promise.all([states.refreshAll(), snapshots.refresh()]);
  commands = register();
});

afterEach(() => {
  Notification.dismiss();
});

describe('snapshotRefusal', () => {
  const refused = (
    action: SnapshotAction,
    changes: Partial<SnapshotView> = {}
  ) =>
    snapshotRefusal(
      action,
      aSnapshot(changes),
      states,
      path => path === 'busy.ipynb'
    );
  const becomes = (changes: Partial<KernelView>) =>
    events.tell(aKernel(changes));

  it('lets everything be done to that of a running kernel', () => {
    expect(snapshotActions.filter(action => refused(action))).toEqual([]);
  });

  it('says what cannot be done to that of an ended kernel', () => {
    const ended = { kernel_id: 'gone' };
    expect(refused('goBack', { ...ended, name: 'busy.ipynb' })).toContain(
      'another kernel'
    );
    expect(refused('goBack', ended)).toBeNull();
    expect(refused('compare', ended)).toContain('not running');
    expect(refused('branch', ended)).toBeNull();
    expect(refused('delete', ended)).toBeNull();
    expect(refused('delete', { ...ended, needed: true })).toContain('needs');
  });

  it('keeps the one that a suspended kernel needs, and no other', () => {
    becomes({ state: 'suspended', snapshot_id: 's' });
    expect(refused('delete')).toContain('needs this snapshot');
    expect(refused('delete', { snapshot_id: 'older' })).toBeNull();
    becomes({ state: 'running', snapshot_id: 's' });
    expect(refused('delete', { needed: true })).toBeNull(); // as it was when it was listed
  });
});

describe('snapshot commands', () => {
  it.each(snapshotActions)('%s describes its arguments', async action => {
    const { args } = await commands.describedBy(snapshotCommandIds[action]);
    expect(args).toMatchObject({ required: ['snapshotId'] });
  });

  it('ask before they go back, and send nothing if that is not wanted', async () => {
    const done = run('goBack');
    press(await dialog('Restore Before?'), 'reject');
    await done;
    expect(server.requests).not.toContain('POST kernels/k/roll_back');
  });

  it('bring cells and outputs back only if that is wanted, and undo it', async () => {
    const then = [
      { ...now[0], source: 'then' },
      { ...now[0], id: 'b' }
    ];
    const stored = { notebook: { cells: then }, modified: 1000 };
    server.on('GET snapshots/s/notebook', stored);
    states.get('k')!.path = 'work/a.ipynb';
    const restore = async (withCells: boolean) => {
      const done = run('goBack');
      const shown = await dialog('1 cell is added. 1 cell changes.');
      const box = shown.querySelector<HTMLInputElement>(
        'input[type="checkbox"]'
      )!;
      expect(box.checked).toBe(true);
      box.checked = withCells;
      press(shown, 'accept');
      await done;
    };
    await restore(false);
    expect(cells.put).not.toHaveBeenCalled();
    expect(saveNotebook).not.toHaveBeenCalled();

    Notification.dismiss();
    await restore(true);
    expect(saveNotebook).toHaveBeenCalledWith('work/a.ipynb');
    expect(cells.put.mock.calls).toEqual([[then]]);
    const [undo] = notifications()[0].options.actions ?? [];
    undo.callback(new MouseEvent('click'));
    await new Promise(resolve => setTimeout(resolve));
    expect(cells.put.mock.calls).toEqual([[then], [now]]);

    cells.put.mockClear();
    server.on(
      'POST kernels/k/roll_back',
      refused(409, { message: 'Busy.', code: 'kernel_busy' })
    );
    await restore(true);
    expect(cells.put).not.toHaveBeenCalled();
  });

  it.each([
    ['manual', false],
    ['tool', true]
  ] as const)(
    'restore files if that is wanted, %s ones by default: %s',
    async (cause, isDefault) => {
      server.on('GET snapshots', {
        snapshots: [aSnapshot({ title: 'Before', has_files: true, cause })]
      });
      await snapshots.refresh();
      for (const wanted of [isDefault, !isDefault]) {
        const done = run('goBack');
        const shown = await dialog('Restore Before?');
        const box = shown.querySelector<HTMLInputElement>('[name="files"]')!;
        expect(box.checked).toBe(isDefault);
        if (box.checked !== wanted) {
          box.click();
        }
        press(shown, 'accept');
        await done;
        expect(ofRestore).toHaveBeenLastCalledWith(
          expect.anything(),
          null,
          wanted
        );
        const [body] = server.bodies.slice(-1);
        expect(JSON.parse(body)).toEqual(
          wanted ? { snapshot_id: 's', files: 'restore' } : { snapshot_id: 's' }
        );
        Notification.dismiss();
      }
    }
  );

  it('restore in a copy while others have the notebook open', async () => {
    cells.isShared = true;
    try {
      const refused = run('goBack');
      press(await dialog('Restore Before in a copy?'), 'reject');
      await refused;
      expect(branchFrom).not.toHaveBeenCalled();
      const done = run('goBack');
      const asked = await dialog('Restore Before in a copy?');
      expect(asked.textContent).toContain('Others have this notebook open.');
      press(asked, 'accept');
      await done;
    } finally {
      cells.isShared = false;
    }
    expect(branchFrom).toHaveBeenCalledWith('s', 'a.ipynb', 'work/a.ipynb');
    expect(server.requests).not.toContain('POST kernels/k/roll_back');
  });

  it('restore in a copy if others open the notebook before it is restored', async () => {
    const then = [{ ...now[0], source: 'then' }];
    const stored = { notebook: { cells: then }, modified: 1000 };
    server.on('GET snapshots/s/notebook', stored);
    states.get('k')!.path = 'work/a.ipynb';
    try {
      const done = run('goBack');
      const shown = await dialog('1 cell changes.');
      cells.isShared = true;
      press(shown, 'accept');
      press(await dialog('Restore Before in a copy?'), 'accept');
      await done;
      expect(server.requests).not.toContain('POST kernels/k/roll_back');
      expect(branchFrom).toHaveBeenCalled();
    } finally {
      cells.isShared = false;
    }
  });

  it('leave the cells to others who open the notebook before an undo', async () => {
    const then = [{ ...now[0], source: 'then' }];
    const stored = { notebook: { cells: then }, modified: 1000 };
    server.on('GET snapshots/s/notebook', stored);
    states.get('k')!.path = 'work/a.ipynb';
    await run('goBack', register({ confirmRollBack: false }));
    const [undo] = notifications()[0].options.actions ?? [];
    cells.isShared = true;
    try {
      undo.callback(new MouseEvent('click'));
      await new Promise(resolve => setTimeout(resolve));
      expect(cells.put.mock.calls).toEqual([[then]]);
    } finally {
      cells.isShared = false;
      cells.put.mockClear();
    }
  });

  it('bring cells and outputs back without a question, too, and undo it', async () => {
    const then = [{ ...now[0], source: 'then' }];
    server.on('GET snapshots/s/notebook', {
      notebook: { cells: then },
      modified: 1000
    });
    states.get('k')!.path = 'work/a.ipynb';
    await run('goBack', register({ confirmRollBack: false }));
    expect(saveNotebook).toHaveBeenCalledWith('work/a.ipynb');
    expect(cells.put.mock.calls).toEqual([[then]]);
    const [undo] = notifications()[0].options.actions ?? [];
    undo.callback(new MouseEvent('click'));
    await new Promise(resolve => setTimeout(resolve));
    expect(cells.put.mock.calls).toEqual([[then], [now]]);
  });

  it('go back without a question where nothing is lost and none is wanted', async () => {
    await run('goBack', register({ confirmRollBack: false }));
    expect(server.bodies).toEqual(['{"snapshot_id":"s"}']);
  });

  it.each([
    ['too_short', '/data.npy is shorter than the kernel needs'],
    ['missing', '/data.npy, which the kernel reads, was deleted']
  ])(
    'restore a snapshot whose file is %s after a warning only',
    async (change, text) => {
      server.on('GET snapshots/s/changes', {
        files: [
          {
            path: '/data.npy',
            change,
            mtime: 2000,
            length_then: 2e6,
            length_now: 1e6
          }
        ],
        obstacles: []
      });
      const done = run('goBack', register({ confirmRollBack: false }));
      const shown = await dialog(text);
      expect(shown.textContent).toContain('Restore Anyway');
      press(shown, 'accept');
      await done;
      expect(server.bodies).toEqual(['{"snapshot_id":"s","force":true}']);
    }
  );

  it('always name files that have changed', async () => {
    const mtime = 2000;
    server.on('GET snapshots/s/changes', {
      files: [
        {
          path: '/data.csv',
          change: 'smaller',
          mtime,
          length_then: 2e6,
          length_now: 1e6
        },
        {
          path: '/log',
          change: 'removed',
          mtime,
          length_then: 1,
          length_now: null
        }
      ],
      obstacles: []
    });
    const done = run('goBack', register({ confirmRollBack: false }));
    const shown = await dialog('/data.csv is smaller');
    expect(shown.textContent).toContain('1 MB, was 2 MB');
    expect(shown.textContent).toContain('/log was deleted');
    press(shown, 'accept');
    await done;
    expect(server.requests).toContain('POST kernels/k/roll_back');
  });

  it('restore the last state of an ended kernel in its own notebook', async () => {
    const ended = aSnapshot({ title: 'Before', kernel_id: 'gone' });
    server.on('GET snapshots', { snapshots: [ended] });
    await snapshots.refresh();
    await run('goBack', register({ confirmRollBack: false }));
    expect(resumeInto).toHaveBeenCalledWith(
      's',
      'work/a.ipynb',
      'a.ipynb to Before'
    );
  });

  it('offer to undo a restore', async () => {
    events.tell(aKernel({ state: 'suspended', snapshot_id: 'asleep' }));
    await run('goBack', register({ confirmRollBack: false }));
    expect(ofRestore).toHaveBeenCalledWith(
      expect.objectContaining({ snapshot_id: 's' }),
      'asleep',
      false
    );
    expect(notifications()).toMatchObject([
      {
        type: 'success',
        message: 'Restored a.ipynb to Before in 0.01 s',
        options: { actions: [{ label: 'Undo' }] }
      }
    ]);
  });

  it('say what is in the way, and offer no way back then', async () => {
    const obstacles = ['numpy is 2.1, was 2.0.'];
    server.on('GET snapshots/s/changes', { files: [], obstacles });
    const done = run('goBack');
    const shown = await dialog('numpy is 2.1');
    expect(shown.querySelectorAll('.jp-Dialog-footer button')).toHaveLength(1);
    press(shown, 'reject');
    await done;
    expect(server.requests).not.toContain('POST kernels/k/roll_back');
  });

  it('say that an export comes, under a name that can be read', async () => {
    const hrefs: string[] = [];
    jest
      .spyOn(HTMLAnchorElement.prototype, 'click')
      .mockImplementation(function (this: HTMLAnchorElement) {
        hrefs.push(this.href);
      });
    await run('export');
    expect(hrefs).toEqual([
      'http://server/api/gpuckpt/snapshots/s/export?name=a%20Before'
    ]);
    expect(notifications()[0].message).toContain('Exporting Before');
    jest.restoreAllMocks();
  });

  it('make a template, and let the launcher show it', async () => {
    const made = {
      name: 'b-ready',
      title: 'Python 3 (a ready)',
      is_being_built: false,
      why: '',
      error: null
    };
    server.on('POST templates', { templates: [made] });
    const done = run('template');
    const asked = await dialog('Save as Template');
    const name = asked.querySelector('input')!;
    expect(name.value).toBe('a-ready');
    name.value = 'b-ready';
    press(asked, 'accept');
    await done;
    expect(JSON.parse(server.bodies[server.bodies.length - 1])).toEqual({
      name: 'b-ready',
      snapshot_id: 's'
    });
    expect(refreshLauncher).toHaveBeenCalledTimes(1);
    expect(notifications()[0]?.message).toContain('Python 3 (a ready)');
  });

  it('say why a template could not be made', async () => {
    const error = {
      message: 'Cell 1 of the recipe failed.',
      code: 'kernel',
      hint: null,
      details: null
    };
    const failed = { name: 'a-ready', title: '', is_being_built: false };
    server.on('POST templates', {
      templates: [{ ...failed, why: '', error }]
    });
    const done = run('template');
    press(await dialog('Save as Template'), 'accept');
    await done;
    expect(notifications()[0]?.message).toContain('Cell 1 of the recipe');
  });

  it('pin and unpin', async () => {
    server.on('PATCH snapshots/s', aSnapshot({ pinned: true }));
    expect(commands.isToggled(snapshotCommandIds.pin, args)).toBe(false);
    await run('pin');
    expect(commands.isToggled(snapshotCommandIds.pin, args)).toBe(true);
    server.on('PATCH snapshots/s', aSnapshot());
    await run('pin');
    expect(server.bodies).toEqual(['{"pinned":true}', '{"pinned":false}']);
  });

  it('say what a verification found', async () => {
    const found = { ok: true, checked_bytes: 4e8, seconds: 3, problems: [] };
    server.on('POST snapshots/s/verify', found);
    await run('verify');
    expect(notifications()).toMatchObject([
      { type: 'success', message: 'Before is intact: 400 MB checked in 3 s' }
    ]);
  });

  it('offer the problems of a damaged one', async () => {
    const problems = ['Chunk 5 is damaged.'];
    const found = { ok: false, checked_bytes: 1, seconds: 1, problems };
    server.on('POST snapshots/s/verify', found);
    await run('verify');
    expect(notifications()).toMatchObject([
      { type: 'warning', options: { actions: [{ label: 'Details' }] } }
    ]);
  });

  it('delete, and take that back', async () => {
    server
      .on('DELETE snapshots/s', { status: 204, body: '' })
      .on('POST snapshots/s/undelete', aSnapshot());
    await run('delete');
    expect(snapshots.list).toEqual([]);
    const [{ message, options }] = notifications();
    expect(message).toBe(
      'Deleted the snapshot Before. You can undo this for 60 seconds.'
    );
    options.actions?.[0].callback(new MouseEvent('click'));
    await new Promise<void>(resolve =>
      snapshots.changed.connect(() => snapshots.list?.length && resolve())
    );
  });

  it('delete, and say which copies in remotes go, too', async () => {
    const uploads = [
      anUpload({ remote: 'team' }),
      anUpload({ remote: 'slow', state: 'uploading' }),
      anUpload({ remote: 'home' })
    ];
    server
      .on('GET snapshots', { snapshots: [aSnapshot({ uploads })] })
      .on('GET store', { undo_delete_seconds: 60 })
      .on('DELETE snapshots/s', { status: 204, body: '' });
    await snapshots.refresh();
    const done = run('delete', register({ confirmDelete: true }));
    const shown = await dialog('You can undo this for 60 seconds.');
    const copies = 'Its copies in “team”, “home” will be deleted, too.';
    expect(shown.textContent).toContain(`seconds. ${copies}`);
    press(shown, 'accept');
    await done;
    expect(notifications()[0].message).toMatch(
      /^Deleted the snapshot .*\. You can undo this for 60 seconds\. Its copies in “team”, “home” will be deleted, too\.$/
    );
  });

  it.each([
    [0, 'This cannot be undone.', 0],
    [1, 'You can undo this for 1 second.', 1]
  ])(
    'delete, and say for how long that can be undone (%s)',
    async (seconds, text, buttons) => {
      server
        .on('GET snapshots', { snapshots: [aSnapshot()] })
        .on('GET store', { undo_delete_seconds: seconds })
        .on('DELETE snapshots/s', { status: 204, body: '' });
      await snapshots.refresh();
      const done = run('delete', register({ confirmDelete: true }));
      press(await dialog(text), 'accept');
      await done;
      expect(notifications()[0].options.actions).toHaveLength(buttons);
    }
  );

  it('say why something failed', async () => {
    const record = {
      message: 'In use.',
      code: 'snapshot_in_use',
      hint: 'Wait.'
    };
    server.on('DELETE snapshots/s', refused(409, record));
    await run('delete');
    expect(notifications()).toMatchObject([
      { type: 'error', message: 'Deleting Before failed: In use. Wait.' }
    ]);
  });
});
