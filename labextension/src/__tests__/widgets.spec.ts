// What the widgets show, drawn by React.

import type { NotebookPanel } from '@jupyterlab/notebook';
import { CommandRegistry } from '@lumino/commands';
import { MessageLoop } from '@lumino/messaging';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { GpuCkptApi } from '../shared/api';
import { SuspendedBanner } from '../kernel/banner';
import { StateChip } from '../kernel/chip';
import { fetchCommandId } from '../remote/fetch-commands';
import { followState } from '../kernel/kernel-indicator';
import { KernelStates } from '../shared/kernel-states';
import type { KernelView, IOperation } from '../shared/records';
import { Remotes } from '../remote/remotes';
import { SessionsPanel } from '../sessions-panel';
import { addSnapshotCommands } from '../snapshot/snapshot-commands';
import type { SnapshotActions } from '../snapshot/snapshot-actions';
import { Snapshots } from '../shared/snapshots';
import { OperationStatus } from '../kernel/status';
import {
  aRemoteSession,
  aKernel,
  anUpload,
  aSave,
  aSnapshot,
  chosen,
  FakeEvents,
  FakeServer
} from './fakes';
const nothing = () => undefined;

let events: FakeEvents;
let server: FakeServer;
let states: KernelStates;
let widget: Widget;

/** A notebook with the kernel `k`. */
function aPanel(): NotebookPanel {
  const sender = {};
  const context = {
    session: {
      kernel: { id: 'k', status: 'idle', connectionStatus: 'connected' }
    },
    kernelChanged: new Signal(sender),
    statusChanged: new Signal(sender),
    connectionStatusChanged: new Signal(sender)
  };
  const stock = { kernelDisplayStatus: 'idle' };
  return {
    disposed: new Signal(sender),
    sessionContext: Object.assign(Object.create(stock), context)
  } as unknown as NotebookPanel;
}

/** Jupyter's side of the kernel `k` changes. */
function jupyterSays(panel: NotebookPanel, changes: object): void {
  const { session, statusChanged } = panel.sessionContext;
  Object.assign(session!.kernel!, changes);
  (statusChanged as Signal<unknown, unknown>).emit(undefined);
}

/** Wait until the widget shows it. */
async function shown(text: string): Promise<void> {
  while (!widget.node.textContent?.includes(text)) {
    await drawn();
  }
}

async function drawn(): Promise<void> {
  MessageLoop.flush();
  await new Promise(resolve => setTimeout(resolve, 5));
}

function attach(made: Widget): void {
  widget = made;
  Widget.attach(widget, document.body);
}

function saving(done_bytes: number, seconds: number): IOperation {
  const progress = { stage: 'store', done_bytes, total_bytes: 4e9, seconds };
  return aSave({ progress });
}

const becomes = (changes: Partial<KernelView>) =>
  events.tell(aKernel({ path: 'work/a.ipynb', ...changes }));

const kernels = {
  running: () =>
    [{ id: 'k', name: '', last_activity: new Date().toISOString() }].values()
};

beforeEach(async () => {
  events = new FakeEvents();
  server = new FakeServer().on('GET kernels', { kernels: [aKernel()] });
  states = new KernelStates(new GpuCkptApi(server.settings), events.stream);
  await states.refreshAll();
});

afterEach(() => {
  widget.dispose();
});

describe('the chip', () => {
  it('shows the state, and how far an operation is', async () => {
    attach(new StateChip(aPanel(), states, chosen(), nothing, kernels));
    await shown('Running');
    becomes({ state: 'resuming', operation: saving(1e9, 1) });
    await shown('Resuming 25%');
  });

  it('says that the kernel restarts, or that the server is away', async () => {
    const panel = aPanel();
    attach(new StateChip(panel, states, chosen(), nothing, kernels));
    await shown('Running');
    jupyterSays(panel, { status: 'restarting' });
    await shown('Restarting');
    jupyterSays(panel, { status: 'idle', connectionStatus: 'connecting' });
    await shown('Connecting');
    jupyterSays(panel, { connectionStatus: 'connected' });
    await shown('Running');
  });

  it('agrees with the indicators of Jupyter', () => {
    const panel = aPanel();
    const toggle = jest.fn();
    Object.assign(panel, { toggleClass: toggle });
    const context = panel.sessionContext;
    const drawn: string[] = [];
    context.statusChanged.connect(() =>
      drawn.push(context.kernelDisplayStatus)
    );
    followState(panel, states);
    attach(new Widget());
    expect(context.kernelDisplayStatus).toBe('idle');
    becomes({ state: 'suspended' });
    expect(toggle).toHaveBeenLastCalledWith('jp-mod-gpuckpt-suspended', true);
    becomes({ state: 'suspended', memory_bytes: 1 });
    becomes({ state: 'resuming' });
    becomes({});
    expect(drawn).toEqual(['', 'starting', 'idle']);
    becomes({ state: 'suspended' });
    jupyterSays(panel, { connectionStatus: 'connecting' });
    expect(context.kernelDisplayStatus).toBe('idle'); // what Jupyter says
  });

  it('says when an idle kernel will be suspended', async () => {
    const panel = aPanel();
    attach(new StateChip(panel, states, chosen(), nothing, kernels));
    becomes({ idle_seconds: 490 });
    await shown('Running · suspends in 8 min');
    jupyterSays(panel, { status: 'busy' });
    while (widget.node.textContent?.includes('suspends')) {
      await drawn();
    }
    jupyterSays(panel, { status: 'idle' });
    becomes({ idle_seconds: 50 });
    await shown('Running · suspends soon');
    becomes({ idle_seconds: 50, state: 'suspended' });
    await shown('Suspended');
    expect(widget.node.textContent).not.toContain('suspends');
  });

  it('can be switched off', async () => {
    const settings = chosen({ showChip: false });
    attach(new StateChip(aPanel(), states, settings, nothing, kernels));
    becomes({ state: 'suspended' });
    await drawn();
    expect(widget.node.textContent).toBe('');
  });
});

describe('the notice', () => {
  const make = (changes = {}) =>
    attach(
      new SuspendedBanner(
        aPanel(),
        states,
        chosen(changes),
        new Remotes(new GpuCkptApi(server.settings), states),
        nothing,
        nothing
      )
    );

  it('is there while the kernel is suspended', async () => {
    make();
    expect(widget.isHidden).toBe(true);
    becomes({ state: 'suspended', suspended_bytes: 4e9, resume_seconds: 2 });
    await shown('4 GB of memory saved. Resuming takes about 2 s.');
    expect(widget.isHidden).toBe(false);
    becomes({ state: 'resuming' });
    expect(widget.isHidden).toBe(true);
  });

  it('says why a resume failed', async () => {
    make();
    becomes({ state: 'suspended', reason: 'No GPU.', hint: 'Start one.' });
    await shown('No GPU. Start one.');
  });

  it('says where a moved kernel is, as its remote does, instead of an old refusal', async () => {
    const session = { session_id: 'k', leased_to: 'desk' };
    const list = (changes: object, here: boolean) => ({
      sessions: [aRemoteSession({ ...session, ...changes }, { here })],
      unreadable: []
    });
    const state = { state: 'suspended', moved_to: 'team' } as const;
    const held = { reason: 'It runs on lap.', error_code: 'session_held' };
    server.on('GET remotes/team/sessions', list({}, true));
    make();
    becomes({ ...state, ...held });
    await shown('Moved: it runs on desk now. Resume takes it over');
    expect(widget.node.textContent).not.toContain('lap');
    becomes({ ...state, reason: 'No room.', error_code: 'store_full' });
    await shown('No room.');
    // It is asked again when its answer is old.
    jest.spyOn(performance, 'now').mockReturnValue(60000);
    const saved = { leased_to: '', host_name: 'desk' };
    server.on('GET remotes/team/sessions', list(saved, false));
    becomes(state);
    await shown('Moved: desk has gone on with it. Resume fetches');
  });

  it('does not flicker on the way back to an older snapshot', async () => {
    server
      .on('POST kernels/k/roll_back', aSave({ kind: 'roll_back' }))
      .on('GET kernels/k', aKernel());
    make();
    const goesBack = states.run('roll_back', 'k').catch(nothing);
    becomes({ state: 'suspended' });
    expect(widget.isHidden).toBe(true);
    await goesBack;
  });

  it('hands every press over, also while an operation is in flight', async () => {
    const resume = jest.fn();
    const remotes = new Remotes(new GpuCkptApi(server.settings), states);
    attach(
      new SuspendedBanner(aPanel(), states, chosen(), remotes, resume, nothing)
    );
    becomes({ state: 'suspended', operation: aSave({ kind: 'move' }) });
    await shown('Resume');
    const button = widget.node.querySelector('button');
    expect(button?.getAttribute('aria-disabled')).toBe('true');
    button?.click();
    expect(resume).toHaveBeenCalledTimes(1);
  });

  it('can be switched off', () => {
    make({ showBanner: false });
    becomes({ state: 'suspended' });
    expect(widget.isHidden).toBe(true);
  });
});

describe('the item in the status bar', () => {
  it('shows what is in flight, how far it is and how fast', async () => {
    const item = new OperationStatus(states, nothing);
    attach(item);
    expect(item.isActive()).toBe(false);
    becomes({ state: 'saving', operation: saving(1e9, 1) });
    expect(item.isActive()).toBe(true);
    await shown('Saving a.ipynb… Writing to disk 25%');
    becomes({ state: 'saving', operation: saving(3e9, 2) });
    await shown('Saving a.ipynb… Writing to disk 75% 2 GB/s');
    becomes({});
    expect(item.isActive()).toBe(false);
  });
});

describe('the panel', () => {
  const list = [
    aSnapshot({ title: 'Newest', gpu_bytes: 3e9, note: 'Look here.' }),
    aSnapshot({ snapshot_id: 'older', cause: 'idle' }),
    aSnapshot({ snapshot_id: 'lone', kernel_id: 'gone', name: 'old/b.ipynb' })
  ];

  let snapshots: Snapshots;

  function make(isShown = true): void {
    const api = new GpuCkptApi(server.settings);
    snapshots = new Snapshots(api, events.stream);
    const commands = new CommandRegistry();
    const none = {} as unknown as SnapshotActions;
    addSnapshotCommands(commands, snapshots, states, () => false, none);
    for (const kind of ['save', 'suspend', 'resume']) {
      commands.addCommand(`gpuckpt:${kind}-kernel`, {
        describedBy: { args: {} },
        execute: nothing
      });
    }
    commands.addCommand(fetchCommandId, {
      describedBy: { args: {} },
      execute: nothing
    });
    const panel = new SessionsPanel({
      states,
      snapshots,
      remotes: new Remotes(api, states),
      commands,
      openNotebook: nothing,
      currentPath: () => 'work/a.ipynb',
      leave: jest.fn()
    });
    panel.setHidden(!isShown);
    attach(panel);
  }

  it('asks for nothing before it is shown', async () => {
    server.on('GET snapshots', { snapshots: list });
    make(false);
    await drawn();
    expect(server.requests).not.toContain('GET snapshots');
    widget.show();
    await shown('Newest');
  });

  it('lists kernels with their snapshots, and those of ended kernels', async () => {
    server.on('GET snapshots', { snapshots: list });
    becomes({ memory_bytes: 1e9, gpu_bytes: 3e9, parent_snapshot_id: 'lone' });
    make();
    await shown('Newest');
    const cards = widget.node.querySelectorAll('.jp-GpuCkptKernel');
    const texts = Array.from(cards).map(card => card.textContent);
    expect(texts).toHaveLength(2);
    expect(texts[0]).toContain('a.ipynb');
    expect(texts[0]).toContain('1 GB RAM · 3 GB GPU');
    expect(texts[0]).toMatch(/Branch of .*1970/);
    expect(texts[0]).toContain('Look here.');
    expect(texts[0]).toContain('idle');
    expect(texts[1]).toContain('b.ipynb');
    expect(cards[0].querySelectorAll('.jp-GpuCkptSnapshot')).toHaveLength(2);
  });

  it('shows a fetched snapshot and those under an earlier name with their notebook', async () => {
    const mixed = [
      aSnapshot({ title: 'Own' }),
      aSnapshot({ snapshot_id: 'f', kernel_id: 'elsewhere', title: 'Fetched' }),
      aSnapshot({
        snapshot_id: 'new',
        kernel_id: 'gone',
        name: 'new.ipynb',
        title: 'Renamed'
      }),
      aSnapshot({
        snapshot_id: 'old',
        kernel_id: 'gone',
        name: 'old.ipynb',
        title: 'Before'
      })
    ];
    server.on('GET snapshots', { snapshots: mixed });
    becomes({});
    make();
    await shown('Renamed');
    const cards = widget.node.querySelectorAll('.jp-GpuCkptKernel');
    const texts = Array.from(cards).map(card => card.textContent);
    expect(texts).toHaveLength(2);
    expect(texts[0]).toMatch(/Own.*Of other kernels of this notebook.*Fetched/);
    expect(texts[1]).toMatch(/new\.ipynb.*Renamed.*Before/);
    expect(texts[1]).not.toContain('old.ipynb');
  });

  it('offers either to resume a kernel or to restore a snapshot', async () => {
    server.on('GET snapshots', { snapshots: list });
    becomes({ state: 'suspended', snapshot_id: 's' });
    make();
    await shown('Newest');
    const labels = (id: string) =>
      widget.node.querySelector(`[data-snapshot='${id}']`)?.textContent;
    expect(labels('s')).not.toContain('Restore This Snapshot');
    expect(labels('older')).toContain('Restore This Snapshot');
  });

  it('says which snapshot a kernel continues from, and gives every button a name', async () => {
    const titled = list.map((one, index) => ({ ...one, title: `No ${index}` }));
    server.on('GET snapshots', { snapshots: titled });
    becomes({ snapshot_id: 'older' });
    make();
    await shown('runs from here');
    const here = widget.node.querySelector("[data-snapshot='older']");
    expect(here?.textContent).toContain('runs from here');
    const names = Array.from(widget.node.querySelectorAll('button')).map(
      button => button.getAttribute('aria-label') ?? button.textContent
    );
    expect(new Set(names).size).toBe(names.length);
  });

  it('shows few snapshots of many, until all are wanted', async () => {
    const many = Array.from({ length: 12 }, (_, index) =>
      aSnapshot({ snapshot_id: `s${index}`, title: `No ${index}` })
    );
    server.on('GET snapshots', { snapshots: many });
    make();
    await shown('Show 7 more');
    Array.from(widget.node.querySelectorAll('button'))
      .find(button => button.textContent === 'Show 7 more')
      ?.click();
    await shown('No 11');
  });

  it('draws what the store holds', async () => {
    const share = (name: string, exclusive_bytes: number) => ({
      name,
      snapshots: 1,
      stored_bytes: 9e8,
      raw_bytes: 2e9,
      exclusive_bytes
    });
    const snapshots = ['s1', 's2', 's3'].map(snapshot_id =>
      aSnapshot({ snapshot_id, title: `Title ${snapshot_id}` })
    );
    server.on('GET snapshots', { snapshots }).on('GET store', {
      path: '/store',
      free_bytes: 5e9,
      disk_bytes: 1e9,
      raw_bytes: 8e9,
      unique_bytes: 4e9,
      stored_bytes: 9e8,
      snapshots: 7,
      by_name: [
        share('small.ipynb', 1e8),
        share('big.ipynb', 3e8),
        ...['a', 'b', 'c', 'd'].map(name => share(name, 25e6))
      ],
      damaged: ['s1', 's2'],
      retention: { max_bytes: 4e9 }
    });
    make();
    await shown('1 GB on disk, 5 GB free');
    const legend = widget.node.querySelectorAll('.jp-GpuCkptStore-legend li');
    // What several need is shown once, so that the parts are what is on disk.
    expect(Array.from(legend).map(({ textContent }) => textContent)).toEqual([
      'big.ipynb300 MB (30%)',
      'small.ipynb100 MB (10%)',
      'a25 MB (3%)',
      'b25 MB (3%)',
      'c25 MB (3%)',
      'Others25 MB (3%)',
      'Shared400 MB (40%)',
      'Not in use100 MB (10%)'
    ]);
    expect(widget.node.textContent).toContain('Deduplication: 8 GB → 4 GB');
    const damage = widget.node.querySelector('.jp-GpuCkptStore [role=alert]');
    expect(damage?.textContent).toBe(
      '2 snapshots are damaged and cannot be resumed:a.ipynb: Title s1a.ipynb: Title s2'
    );
    expect(widget.node.textContent).toContain('Compression: 4 GB → 900 MB');
    const quota = widget.node.querySelector('meter');
    expect(quota?.getAttribute('aria-label')).toBe('900 MB of at most 4 GB');
    expect(quota?.getAttribute('value')).toBe('900000000');
  });

  it('says of a snapshot whether it is uploaded, and where', async () => {
    const uploads = [
      anUpload(),
      anUpload({ remote: 'home', state: 'waiting' })
    ];
    server.on('GET snapshots', { snapshots: [aSnapshot({ uploads })] });
    make();
    await shown('not uploaded yet');
    const badges = widget.node.querySelectorAll('[data-upload]');
    expect(badges).toHaveLength(1);
    expect(badges[0].getAttribute('title')).toBe(
      'Uploaded to “team”.\nWaiting to be uploaded to “home”.'
    );
  });

  it('says of a snapshot that its content is only in a remote', async () => {
    const stub = aSnapshot({ uploads: [anUpload()], remote_only: 'team' });
    server.on('GET snapshots', { snapshots: [stub] });
    make();
    await shown('not on this disk');
    const badge = widget.node.querySelector("[data-upload='remote']");
    expect(badge?.getAttribute('title')).toBe(
      'Stored only in “team”. Resuming downloads it.\nUploaded to “team”.'
    );
  });

  it('asks nothing of remotes where there are none, and offers to add one', async () => {
    server
      .on('GET snapshots', { snapshots: list })
      .on('GET remotes', { remotes: [] });
    make();
    await shown('Newest');
    expect(widget.node.textContent).toContain('from a remote, which is');
    expect(widget.node.querySelector('[data-upload]')).toBeNull();
    expect(
      server.requests.filter(request => request.includes('remotes'))
    ).toEqual(['GET remotes']);
  });

  it('lists what remotes have and this machine has not', async () => {
    const session = aRemoteSession();
    const known = aRemoteSession({ path: 'b.ipynb' }, { snapshot_id: 'lone' });
    const newer = aRemoteSession(
      { path: 'c.ipynb' },
      { snapshot_id: 'c', created: 2000 }
    );
    const unreadable = ['A session was altered.'];
    const remotes = [{ name: 'team', url: 's3://team', refusals: [] }];
    server
      .on('GET snapshots', { snapshots: list })
      .on('GET remotes', { remotes })
      .on('GET remotes/team/sessions', {
        remote: 'team',
        sessions: [newer, session, known],
        unreadable
      });
    make();
    await shown('Fetch and Resume…');
    await shown('Newest');
    const items = widget.node.querySelectorAll('[data-remote-session]');
    const texts = Array.from(items).map(item => item.textContent);
    expect(texts).toHaveLength(2);
    expect(texts[0]).toMatch(/a\.ipynb.*40 MB.*laptop.*team/);
    expect(texts[1]).toContain('c.ipynb');
    const alert = widget.node.querySelector('[role=alert]');
    expect(alert?.textContent).toBe('“team”: A session was altered.');
  });

  it('says why it knows nothing', async () => {
    server.on('GET snapshots', { status: 404, body: '' });
    make();
    await shown('The server extension jupyter_gpuckpt is not running.');
  });
});
