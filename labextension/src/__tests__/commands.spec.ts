import { Notification } from '@jupyterlab/apputils';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { Session } from '@jupyterlab/services';
import { CommandRegistry } from '@lumino/commands';
import { Signal } from '@lumino/signaling';
import type { Widget } from '@lumino/widgets';

import { GpuCkptApi } from '../shared/api';
import type { Action } from '../kernel/commands';
import { actions, addCommands, commandIds } from '../kernel/commands';
import { followIdleKernels } from '../kernel/idle-notice';
import { KernelActions } from '../kernel/kernel-actions';
import { KernelStates } from '../shared/kernel-states';
import { Remotes } from '../remote/remotes';
import { Operations } from '../shared/operations';
import { press as pressed } from '../shared/press';
import { OPERATION_EVENT_SCHEMA } from '../shared/server-events';
import { Targets } from '../kernel/targets';
import type { IUserSettings } from '../shared/tokens';
import {
  aDone,
  aKernel,
  aRemoteSession,
  aSave,
  chosen,
  FakeEvents,
  FakeServer,
  refused as refusedWith
} from './fakes';

let server: FakeServer;
let events: FakeEvents;
let states: KernelStates;
let commands: CommandRegistry;
/** The file selected in the file browser. */
let selected: string | null;
/** The panel in front. */
let current: Widget | null;
const showHistory = jest.fn();
const openNotebook = jest.fn();
const addRemote = jest.fn<Promise<string | null>, []>();
const fetchPlace = jest.fn();
const saveNotebook = jest.fn();

/** A notebook, as far as the commands look at it. */
function aPanel(id: string, kernelId: string): NotebookPanel {
  return {
    id,
    title: { label: `${id}.ipynb` },
    sessionContext: { session: { kernel: { id: kernelId } } }
  } as unknown as NotebookPanel;
}

function aTracker(...panels: NotebookPanel[]): INotebookTracker {
  const sender = {};
  return {
    currentWidget: panels[0] ?? null,
    currentChanged: new Signal(sender),
    widgetAdded: new Signal(sender),
    find: (test: (panel: NotebookPanel) => boolean) => panels.find(test)
  } as unknown as INotebookTracker;
}

/** The commands with these notebooks and choices. */
function register(
  tracker: INotebookTracker | null,
  choices: Partial<IUserSettings['choices']> = {}
): CommandRegistry {
  const registry = new CommandRegistry();
  const sessions = [{ path: 'work/b.ipynb', kernel: { id: 'other' } }];
  const targets = new Targets(
    states,
    tracker,
    { running: () => sessions.values() } as unknown as Session.IManager,
    () => selected,
    () => current
  );
  const settings = chosen(choices);
  const kernelActions = new KernelActions(
    new GpuCkptApi(server.settings),
    states,
    new Remotes(new GpuCkptApi(server.settings), states),
    new Operations(states, settings),
    settings,
    showHistory,
    openNotebook,
    saveNotebook,
    addRemote,
    fetchPlace
  );
  addCommands(registry, targets, states, kernelActions);
  return registry;
}

const enabled = (registry: CommandRegistry, args = {}) =>
  actions.filter(action => registry.isEnabled(commandIds[action], args));

function notifications() {
  return Notification.manager.notifications;
}

beforeEach(async () => {
  events = new FakeEvents();
  jest.spyOn(performance, 'now').mockReturnValue(0);
  server = new FakeServer()
    .on('GET kernels', {
      kernels: [aKernel(), aKernel({ kernel_id: 'other', state: 'suspended' })]
    })
    .on('GET kernels/k', aKernel());
  states = new KernelStates(new GpuCkptApi(server.settings), events.stream);
  await states.refreshAll();
  selected = null;
  current = null;
  saveNotebook.mockResolvedValue(true);
  commands = register(aTracker(aPanel('a', 'k'), aPanel('b', 'other')));
});

afterEach(() => {
  jest.clearAllMocks();
  Notification.dismiss();
});

describe('commands', () => {
  it.each(actions)('%s describes its arguments', async action => {
    const { args } = await commands.describedBy(commandIds[action]);
    expect(args).toMatchObject({ type: 'object' });
  });

  it('follow the kernel of the current notebook', () => {
    const allowed: Action[] = [
      'save',
      'saveAs',
      'suspend',
      'park',
      'branch',
      'move',
      'history'
    ];
    expect(enabled(commands)).toEqual(allowed);
  });

  it('follow the kernel of the notebook whose toolbar they are in', () => {
    const args = { panelId: 'b' };
    expect(enabled(commands, args)).toEqual([
      'resume',
      'branch',
      'move',
      'history'
    ]);
    expect(commands.caption(commandIds.save, args)).toBe(
      'Save Snapshot: This kernel is suspended.'
    );
  });

  it('follow the kernel of the console in front, not of the last notebook', () => {
    current = aPanel('console', 'other');
    expect(enabled(commands)).toContain('resume');
    current = { id: 'no-kernel' } as Widget;
    expect(enabled(commands)).toContain('suspend');
  });

  it('follow the kernel that they name', () => {
    expect(enabled(commands, { kernelId: 'other' })).toContain('resume');
    expect(enabled(commands, { path: 'work/b.ipynb' })).toContain('resume');
  });

  it('offer for a file what can be done to its kernel, and nothing else', () => {
    const visible = () =>
      actions.filter(action =>
        commands.isVisible(commandIds[action], { selectedFile: true })
      );
    expect(visible()).toEqual([]);
    selected = 'work/a.ipynb'; // has no kernel
    expect(visible()).toEqual([]);
    selected = 'work/b.ipynb';
    expect(visible()).toEqual(['resume', 'branch', 'move', 'history']);
  });

  it('are disabled without a notebook, but for the history', () => {
    expect(enabled(register(aTracker()))).toEqual(['history']);
    expect(enabled(register(null))).toEqual(['history']);
  });

  it('show the history of a kernel', async () => {
    await commands.execute(commandIds.history, { panelId: 'b' });
    expect(showHistory).toHaveBeenCalledWith('other');
  });

  it('give the reason if a button is pressed or a shortcut typed that is not possible now', () => {
    pressed(commands, commandIds.save, { panelId: 'b' });
    const message = 'Save Snapshot: This kernel is suspended.';
    expect(notifications()).toMatchObject([{ type: 'warning', message }]);

    commands.addKeyBinding({
      command: commandIds.resume,
      keys: ['Alt Shift R'],
      selector: 'body'
    });
    const type = (event: Event) =>
      commands.processKeydownEvent(event as KeyboardEvent);
    document.body.addEventListener('keydown', type);
    const typed = { key: 'R', keyCode: 82, altKey: true, shiftKey: true };
    document.body.dispatchEvent(new KeyboardEvent('keydown', typed));
    document.body.removeEventListener('keydown', type);
    // The latest one is shown, alone.
    expect(notifications()).toMatchObject([
      { message: 'Resume Kernel: This kernel is running.' }
    ]);
    expect(enabled(commands)).not.toContain('resume');
    expect(server.requests).toEqual(['GET kernels']);
  });

  it('run if a button is pressed that is possible', () => {
    pressed(commands, commandIds.history, { panelId: 'b' });
    expect(showHistory).toHaveBeenCalledWith('other');
    expect(notifications()).toEqual([]);
  });

  it('ask to be drawn again when a kernel changes', () => {
    const drawn: (string | undefined)[] = [];
    commands.commandChanged.connect((_, { id }) => drawn.push(id));
    events.tell(aKernel({ state: 'suspended' }));
    expect(drawn).toEqual(actions.map(action => commandIds[action]));
  });

  it('show what a success did, in the notification of the progress', async () => {
    server
      .on('GET kernels/k', aKernel({ state: 'suspended' }))
      .on('POST kernels/k/suspend', aSave({ kind: 'suspend' }))
      .on('GET operations/o?wait=20', aDone({ kind: 'suspend' }));
    const clock = jest.spyOn(performance, 'now').mockReturnValue(1000);
    const done = commands.execute(commandIds.suspend);
    clock.mockReturnValue(6700);
    expect(notifications()).toMatchObject([
      { type: 'in-progress', message: 'Suspending a.ipynb…' }
    ]);
    const progress = {
      stage: 'store',
      done_bytes: 1,
      total_bytes: 4,
      seconds: 1
    };
    events.tell(aKernel({ operation: aSave({ kind: 'suspend', progress }) }));
    expect(notifications()[0].message).toBe(
      'Suspending a.ipynb… Writing to disk 25%'
    );
    await done;
    expect(notifications()).toMatchObject([
      {
        type: 'success',
        message:
          'Suspended a.ipynb in 5.7 s: freed 999 MB of RAM · 412 MB on disk',
        options: { autoClose: 8000 }
      }
    ]);
    // What it freed is in use again.
    events.tell(aKernel({ state: 'resuming' }));
    expect(notifications()).toEqual([]);
  });

  it('say how long it takes, and can be canceled', async () => {
    server
      .on('POST kernels/k/save', aSave())
      .on('POST operations/o/cancel', aSave())
      .on('GET operations/o?wait=20', aSave(), aSave({ state: 'cancelled' }));
    const done = commands.execute(commandIds.save);
    const progress = { stage: 'store', total_bytes: 100, seconds: 1 };
    const reaches = (done_bytes: number, seconds: number) =>
      events.tell(
        aKernel({
          operation: aSave({ progress: { ...progress, done_bytes, seconds } })
        })
      );
    reaches(10, 1);
    reaches(20, 2);
    const [{ message, options }] = notifications();
    expect(message).toBe(
      'Saving a.ipynb… Writing to disk 20% (about 8 s left)'
    );
    const press = new MouseEvent('click', { cancelable: true });
    options.actions?.[0].callback(press);
    expect(press.defaultPrevented).toBe(true);
    await done;
    expect(server.requests).toContain('POST operations/o/cancel');
    expect(notifications()).toMatchObject([
      { message: 'Saving a.ipynb was canceled' }
    ]);
  });

  it('show that a success came with warnings', async () => {
    const operation = aDone();
    const result = { ...operation.result, warnings: ['data.csv changed.'] };
    server.on('POST kernels/k/save', { ...operation, result });
    await commands.execute(commandIds.save);
    expect(notifications()).toMatchObject([
      { type: 'warning', options: { actions: [{ label: 'Details' }] } }
    ]);
  });

  it('show a failure, its hint and its details', async () => {
    const error = {
      message: 'The disk is full.',
      code: 'store_full',
      hint: 'Delete snapshots.',
      details: 'needed 5, free 3'
    };
    server.on('POST kernels/k/save', aSave({ state: 'failed', error }));
    await expect(commands.execute(commandIds.save)).resolves.toBeNull();
    expect(notifications()).toMatchObject([
      {
        type: 'error',
        message: 'Saving a.ipynb failed: The disk is full. Delete snapshots.',
        options: { autoClose: 30000, actions: [{ label: 'Details' }] }
      }
    ]);
  });

  it('warn of a save that a suspend has cancelled', async () => {
    server.on('POST kernels/k/save', aSave({ state: 'cancelled' }));
    await commands.execute(commandIds.save);
    expect(notifications()).toMatchObject([
      { type: 'warning', message: 'Saving a.ipynb was canceled' }
    ]);
  });

  it('show the end even if the progress was closed', async () => {
    server.on('POST kernels/k/save', aDone());
    const done = commands.execute(commandIds.save);
    Notification.dismiss();
    await done;
    expect(notifications()).toMatchObject([{ type: 'success' }]);
  });
});

describe('a branch', () => {
  const started = aSave({
    kind: 'resume',
    kernel_id: 'new',
    operation_id: 'b',
    path: 'work/a-branch-1.ipynb'
  });
  const branched = {
    ...started,
    state: 'succeeded',
    result: aDone().result
  };

  it('of a running kernel begins with a save, and its notebook is opened', async () => {
    server
      .on('POST kernels/k/save', aDone())
      .on('POST snapshots/s/branch', started)
      .on('GET operations/b?wait=20', { ...branched, path: undefined })
      .on('GET kernels/new', aKernel({ kernel_id: 'new' }));
    await commands.execute(commandIds.branch);
    expect(openNotebook).toHaveBeenCalledWith('work/a-branch-1.ipynb');
    expect(notifications().map(({ message }) => message)).toContainEqual(
      'Branched a.ipynb into a-branch-1.ipynb in 0.01 s'
    );
  });

  it('takes what is in the page along: its notebook is saved first', async () => {
    events.tell(
      aKernel({ state: 'suspended', snapshot_id: 's', path: 'work/a.ipynb' })
    );
    server.on('POST snapshots/s/branch', branched);
    saveNotebook.mockResolvedValueOnce(false);
    await commands.execute(commandIds.branch);
    expect(server.requests).not.toContain('POST snapshots/s/branch');
    await commands.execute(commandIds.branch);
    expect(server.requests).toContain('POST snapshots/s/branch');
    expect(saveNotebook.mock.calls).toEqual([
      ['work/a.ipynb'],
      ['work/a.ipynb']
    ]);
  });

  it('is not begun when the save fails', async () => {
    const error = { message: 'No.', code: 'x', hint: null, details: null };
    server.on('POST kernels/k/save', aSave({ state: 'failed', error }));
    await commands.execute(commandIds.branch);
    expect(server.requests).not.toContain('POST snapshots/s/branch');
    expect(openNotebook).not.toHaveBeenCalled();
  });

  it('of a suspended kernel begins at its snapshot', async () => {
    const asleep = { kernel_id: 'other', snapshot_id: 'z' } as const;
    events.tell(aKernel({ ...asleep, state: 'suspended' }));
    server.on('POST snapshots/z/branch', branched);
    await commands.execute(commandIds.branch, { kernelId: 'other' });
    expect(openNotebook).toHaveBeenCalledWith('work/a-branch-1.ipynb');
  });
});

/** Wait for the dialog with this text. */
/** Wait for a dialog with this text. React fills the body later than the title is there. */
async function dialog(text: string): Promise<HTMLElement> {
  for (;;) {
    const shown = document.querySelector<HTMLElement>('.jp-Dialog');
    const body = shown?.querySelector('.jp-Dialog-body')?.textContent;
    if (shown?.textContent?.includes(text) && body) {
      return shown;
    }
    await new Promise(resolve => setTimeout(resolve, 10));
  }
}

function press(shown: HTMLElement, which: 'accept' | 'reject'): void {
  shown.querySelector<HTMLElement>(`.jp-mod-${which}`)!.click();
}

const messages = () => notifications().map(({ message }) => message);

describe('a move', () => {
  const moved = aDone({ kind: 'move' });
  const remotes = (...names: string[]) =>
    server.on('GET remotes', {
      remotes: names.map(name => ({ name, url: '', refusals: [] }))
    });

  it('goes to the only remote, and its end is shown until the kernel runs again', async () => {
    remotes('team')
      .on('POST kernels/k/move', moved)
      .on('GET kernels/k', aKernel({ state: 'suspended' }));
    const done = commands.execute(commandIds.move);
    const shown = await dialog('Move a.ipynb to another machine?');
    expect(shown.textContent).toContain('Remote: “team”');
    press(shown, 'accept');
    await done;
    expect(server.bodies).toEqual([JSON.stringify({ remote: 'team' })]);
    expect(notifications()).toMatchObject([
      {
        type: 'success',
        message: 'Moved a.ipynb. It is safe to close this machine.',
        options: { autoClose: false }
      }
    ]);
    events.tell(aKernel({ state: 'resuming' }));
    expect(notifications()).toEqual([]);
  });

  it('goes to the remote that its user chooses', async () => {
    remotes('team', 'home').on('POST kernels/k/move', moved);
    const done = commands.execute(commandIds.move);
    const shown = await dialog('Move a.ipynb');
    const select = shown.querySelector('select')!;
    select.value = 'home';
    select.dispatchEvent(new Event('change', { bubbles: true }));
    press(shown, 'accept');
    await done;
    expect(server.bodies).toEqual([JSON.stringify({ remote: 'home' })]);
  });

  it('says that this machine cannot be closed yet', async () => {
    const result = { ...moved.result, warnings: ['1 other kernel runs.'] };
    remotes('team')
      .on('POST kernels/k/move', { ...moved, result })
      .on('GET kernels/k', aKernel({ state: 'suspended' }));
    const done = commands.execute(commandIds.move);
    press(await dialog('Move a.ipynb'), 'accept');
    await done;
    expect(notifications()).toMatchObject([
      {
        type: 'warning',
        message:
          'Moved a.ipynb with warnings. Read them before you shut this machine down.',
        options: { autoClose: false, actions: [{ label: 'Details' }] }
      }
    ]);
  });

  it('shows its progress and is canceled', async () => {
    const begun = aSave({ kind: 'move' });
    remotes('team')
      .on('POST kernels/k/move', begun)
      .on('POST operations/o/cancel', begun)
      // A server that is away for a moment is asked again after a second.
      .on('GET operations/o?wait=20', new TypeError('away'), {
        ...begun,
        state: 'cancelled'
      });
    const done = commands.execute(commandIds.move);
    press(await dialog('Move a.ipynb'), 'accept');
    while (!server.requests.includes('POST kernels/k/move')) {
      await new Promise(resolve => setTimeout(resolve, 10));
    }
    const progress = {
      stage: 'upload',
      done_bytes: 1,
      total_bytes: 4,
      seconds: 1
    };
    events.tell(
      aKernel({ state: 'suspended', operation: { ...begun, progress } })
    );
    const [{ message, options }] = notifications();
    expect(message).toBe('Moving a.ipynb… Uploading 25%');
    options.actions?.[0].callback(new MouseEvent('click'));
    await done;
    expect(server.requests).toContain('POST operations/o/cancel');
    expect(messages()).toEqual(['Moving a.ipynb was canceled']);
  });

  it('asks for a remote where there is none, and goes on with it', async () => {
    remotes();
    addRemote.mockResolvedValueOnce(null);
    await commands.execute(commandIds.move);
    expect(server.requests).not.toContain('POST kernels/k/move');
    expect(messages()).toEqual([]);
    addRemote.mockResolvedValueOnce('new');
    const done = commands.execute(commandIds.move);
    const shown = await dialog('Move a.ipynb to another machine?');
    expect(shown.textContent).toContain('Remote: “new”');
    press(shown, 'accept');
    await done;
    expect(server.bodies).toContain(JSON.stringify({ remote: 'new' }));
  });

  it('is not begun if its user does not want it, or the notebook is not saved', async () => {
    remotes('team');
    let done = commands.execute(commandIds.move);
    press(await dialog('Move a.ipynb'), 'reject');
    await done;
    saveNotebook.mockResolvedValueOnce(false);
    done = commands.execute(commandIds.move);
    press(await dialog('Move a.ipynb'), 'accept');
    await done;
    expect(server.requests).not.toContain('POST kernels/k/move');
    expect(messages()).toEqual([]);
  });
});

describe('a resume of what another machine runs', () => {
  const error = {
    message: 'Session k runs on machine desk, since 10:00.',
    code: 'session_held',
    hint: 'Suspend it there.',
    details: null
  };

  beforeEach(() => {
    events.tell(aKernel({ state: 'suspended' }));
    server.on(
      'POST kernels/k/resume',
      aSave({ kind: 'resume', state: 'failed', error }),
      aDone({ kind: 'resume' })
    );
  });

  it('takes it over after a warning', async () => {
    const done = commands.execute(commandIds.resume);
    const shown = await dialog('Take over a.ipynb?');
    expect(shown.textContent).toContain(error.message);
    expect(shown.textContent).toContain('does not stop it there');
    press(shown, 'accept');
    await done;
    expect(server.bodies).toEqual(['{}', JSON.stringify({ take_over: true })]);
    expect(messages()).toEqual(['Resumed a.ipynb in 0.01 s']);
  });

  it('leaves it there if its user does not want that', async () => {
    const done = commands.execute(commandIds.resume);
    press(await dialog('Take over a.ipynb?'), 'reject');
    await done;
    expect(server.bodies).toEqual(['{}']);
    expect(messages()).toEqual(['Resuming a.ipynb was canceled']);
  });
});

describe('a resume of a kernel that was moved', () => {
  const here = { snapshot_id: 'mine', kernel_id: 'k', here: true };

  const resume = async (session: object, snapshot: object) => {
    events.tell(aKernel({ state: 'suspended', moved_to: 'team' }));
    const found = aRemoteSession({ session_id: 'k', ...session }, snapshot);
    server
      .on('GET remotes/team/sessions', { sessions: [found], unreadable: [] })
      .on('POST kernels/k/resume', aDone({ kind: 'resume' }));
    await commands.execute(commandIds.resume);
  };

  it('offers what another machine has saved since', async () => {
    await resume({}, { ...here, snapshot_id: 'theirs', here: false });
    expect(fetchPlace).toHaveBeenCalledWith({
      remote: 'team',
      sessionId: 'k',
      snapshotId: 'theirs'
    });
    expect(server.bodies).toEqual([]);
  });

  it('goes on here if the remote has nothing newer, or does not answer', async () => {
    await resume({}, here);
    server.on(
      'GET remotes/team/sessions',
      refusedWith(502, { message: 'Down.', code: 'x' })
    );
    await commands.execute(commandIds.resume);
    expect(fetchPlace).not.toHaveBeenCalled();
    expect(server.bodies).toEqual(['{}', '{}']);
  });

  it('asks before it resumes an older snapshot', async () => {
    const error = {
      message: 'The remote has a newer snapshot.',
      code: 'session_ahead',
      hint: null,
      details: null
    };
    events.tell(aKernel({ state: 'suspended' }));
    server.on(
      'POST kernels/k/resume',
      aSave({ kind: 'resume', state: 'failed', error }),
      aDone({ kind: 'resume' })
    );
    const done = commands.execute(commandIds.resume);
    const shown = await dialog('Resume an older snapshot of a.ipynb?');
    expect(shown.textContent).toContain(error.message);
    expect(shown.querySelector('.jp-mod-reject')).toBe(document.activeElement);
    expect(messages()).toEqual(['a.ipynb waits for your answer.']);
    press(shown, 'accept');
    await done;
    expect(messages()).toEqual(['Resumed a.ipynb in 0.01 s']);
    expect(server.bodies).toEqual(['{}', JSON.stringify({ take_over: true })]);
  });
});

describe('a resume of a kernel whose file is shorter', () => {
  const error = {
    message:
      'The file /data.npy has only 5 bytes now, 800,128 at the snapshot.',
    code: 'files_changed',
    hint: 'Put it back.',
    details: null
  };
  const held = {
    message: 'It runs on desk.',
    code: 'session_held',
    hint: null,
    details: null
  };
  const refused = (why: typeof error | typeof held) =>
    aSave({ kind: 'resume', state: 'failed', error: why });

  beforeEach(() => {
    events.tell(aKernel({ state: 'suspended' }));
  });

  it('goes on after a warning that names the file', async () => {
    const done = aDone({ kind: 'resume' });
    const result = { ...done.result, warnings: [error.message] };
    server.on('POST kernels/k/resume', refused(error), { ...done, result });
    const finished = commands.execute(commandIds.resume);
    const shown = await dialog('Resume a.ipynb although files changed?');
    expect(shown.textContent).toContain(error.message);
    expect(shown.textContent).toContain('Put the files back');
    expect(shown.textContent).toContain('keep_files');
    press(shown, 'accept');
    await finished;
    expect(server.bodies).toEqual(['{}', JSON.stringify({ force: true })]);
    expect(messages()[0]).toContain('/data.npy');
  });

  it('is left suspended if its user wants to put the file back', async () => {
    server.on('POST kernels/k/resume', refused(error));
    const finished = commands.execute(commandIds.resume);
    press(await dialog('although files changed'), 'reject');
    await finished;
    expect(server.bodies).toEqual(['{}']);
    expect(messages()).toEqual(['Resuming a.ipynb was canceled']);
  });

  it('keeps the answer to an earlier question', async () => {
    server.on(
      'POST kernels/k/resume',
      refused(held),
      refused(error),
      aDone({ kind: 'resume' })
    );
    const finished = commands.execute(commandIds.resume);
    press(await dialog('Take over a.ipynb?'), 'accept');
    press(await dialog('although files changed'), 'accept');
    await finished;
    expect(server.bodies[2]).toEqual(
      JSON.stringify({ take_over: true, force: true })
    );
  });
});

describe('notifications', () => {
  const end = (changes = {}) =>
    events.emit({
      ...aDone({ operation_id: 'theirs', kind: 'suspend' }),
      schema_id: OPERATION_EVENT_SCHEMA,
      name: 'work/a.ipynb',
      ...changes
    });

  it('tell nothing of what others do, by default', () => {
    events.tell(aKernel({ state: 'saving', operation: aSave() }));
    end();
    expect(notifications()).toEqual([]);
  });

  it('tell with what warnings a cell has brought a kernel back', () => {
    const { result } = aDone();
    const warnings = ['The file /data.npy has other content.'];
    end({ kind: 'resume' });
    end({ kind: 'resume', result: { ...result, warnings } });
    expect(notifications()).toHaveLength(1);
    const [{ message, type }] = notifications();
    expect(type).toBe('warning');
    expect(message).toContain('Resumed a.ipynb');
    expect(message).toContain('/data.npy has other content');
  });

  it('tell of what others did, if that is wanted', () => {
    register(null, { notifications: 'all' });
    end();
    const error = { message: 'Full.', code: 'x', hint: null, details: null };
    end({ state: 'failed', error });
    expect(notifications().map(({ message }) => message)).toEqual([
      'Suspending a.ipynb failed: Full.',
      'Suspended a.ipynb in 0.41 s: freed 999 MB of RAM · 412 MB on disk'
    ]);
  });

  it('say that an idle kernel will be suspended, and what that freed', async () => {
    const api = new GpuCkptApi(server.settings);
    const operations = new Operations(states, chosen());
    followIdleKernels(states, api, operations);
    server.on('POST kernels/k/keep_running', aKernel());
    const idle = aKernel({ path: 'work/a.ipynb', suspends_at: 60 });
    events.tell(idle);
    events.tell({ ...idle, memory_bytes: 1 });
    const [{ message, options }] = notifications();
    expect(notifications()).toHaveLength(1);
    expect(message).toMatch(/^a\.ipynb is idle\. It will be suspended at .*/);
    expect(options.actions?.[0].label).toBe('Keep Running');
    options.actions?.[0].callback(new MouseEvent('click'));
    events.tell({ ...idle, suspends_at: null });
    expect(notifications()).toEqual([]);
    events.tell(idle);
    end({ kernel_id: 'k' });
    events.tell({ ...idle, suspends_at: null, state: 'suspended' });
    expect(notifications().map(({ message }) => message)).toEqual([
      'Suspended a.ipynb in 0.41 s: freed 999 MB of RAM · 412 MB on disk'
    ]);
    end({ kernel_id: 'k' });
    expect(notifications()).toHaveLength(1);
    expect(server.requests).toContain('POST kernels/k/keep_running');
  });

  it('can be those of failures alone', async () => {
    const quiet = register(null, { notifications: 'failures' });
    server.on('POST kernels/k/save', aDone());
    await quiet.execute(commandIds.save, { kernelId: 'k' });
    expect(notifications()).toEqual([]);
    const error = { message: 'Full.', code: 'x', hint: null, details: null };
    server.on('POST kernels/k/save', aSave({ state: 'failed', error }));
    await quiet.execute(commandIds.save, { kernelId: 'k' });
    expect(notifications()).toMatchObject([{ type: 'error' }]);
  });
});
