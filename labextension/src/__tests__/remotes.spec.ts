import { Notification } from '@jupyterlab/apputils';
import { CommandRegistry } from '@lumino/commands';

import { GpuCkptApi } from '../shared/api';
import type {
  FetchEstimate,
  ProgressRecord,
  RemoteListing,
  UploadView
} from '../shared/records';
import {
  copiesOfDeleted,
  remoteTitle,
  uploadCaption,
  uploadLabel,
  weightiest
} from '../remote/remote-texts';
import {
  addFetchCommand,
  FetchActions,
  fetchCommandId
} from '../remote/fetch-commands';
import { KernelStates } from '../shared/kernel-states';
import { Operations } from '../shared/operations';
import { elsewhere, Remotes, runElsewhere } from '../remote/remotes';
import { OPERATION_EVENT_SCHEMA } from '../shared/server-events';
import type { Answer } from './fakes';
import {
  aDone,
  aRemoteSession,
  aKernel,
  anUpload,
  aSave,
  chosen,
  dialog,
  FakeEvents,
  FakeServer,
  press,
  refused
} from './fakes';
const team = { name: 'team', url: 's3://team', refusals: [] };
const home = { name: 'home', url: 'file:///home', refusals: [] };

let server: FakeServer;
let api: GpuCkptApi;
let events: FakeEvents;
let states: KernelStates;

const itIs = (now: number) =>
  jest.spyOn(performance, 'now').mockReturnValue(now);

beforeEach(() => {
  itIs(0);
  server = new FakeServer();
  api = new GpuCkptApi(server.settings);
  events = new FakeEvents();
  states = new KernelStates(api, events.stream);
});

function listing(remote: string, ...sessions: RemoteListing['sessions']) {
  return { remote, sessions, unreadable: [] };
}

describe('Remotes', () => {
  it.each<[string, Answer]>([
    ['there are none', { remotes: [] }],
    ['the server knows none', { status: 404, body: '<html>' }],
    ['the server does not answer', new TypeError('gone')]
  ])('asks no further when %s', async (_, answer) => {
    server.on('GET remotes', answer);
    const remotes = new Remotes(api, states);
    await remotes.look();
    expect(remotes.known).toEqual([]);
    expect(server.requests).toEqual(['GET remotes']);
  });

  it('asks each what it has, and again only when it is asked to', async () => {
    server
      .on('GET remotes', { remotes: [team, home] })
      .on('GET remotes/team/sessions', listing('team', aRemoteSession()))
      .on('GET remotes/home/sessions', listing('home'));
    const remotes = new Remotes(api, states);
    await remotes.look();
    await remotes.look();
    expect(
      remotes.known.map(({ listing }) => listing?.sessions.length)
    ).toEqual([1, 0]);
    expect(server.requests).toHaveLength(3);
    await remotes.refresh();
    expect(server.requests).toHaveLength(6);
  });

  it('says why one cannot be read, beside the others', async () => {
    const record = {
      message: 'Denied.',
      code: 'remote_denied',
      hint: 'Log in.',
      details: null
    };
    const refusals = ['It overwrites objects.'];
    server
      .on('GET remotes', { remotes: [{ ...home, refusals }, team] })
      .on('GET remotes/team/sessions', refused(502, record));
    const remotes = new Remotes(api, states);
    await remotes.look();
    expect(remotes.known.map(({ problem }) => problem?.message)).toEqual([
      'It overwrites objects.',
      'Denied.'
    ]);
    expect(server.requests).not.toContain('GET remotes/home/sessions');
  });

  it('forgets one that was removed', async () => {
    server
      .on('GET remotes', { remotes: [team] }, { remotes: [] })
      .on('GET remotes/team/sessions', listing('team'));
    const remotes = new Remotes(api, states);
    await remotes.look();
    await remotes.refresh();
    expect(remotes.known).toEqual([]);
  });
});

describe('the session of a moved kernel', () => {
  const aMoved = () => aKernel({ state: 'suspended', moved_to: 'team' });
  const answers = (leased_to: string) =>
    server.on(
      'GET remotes/team/sessions',
      listing('team', aRemoteSession({ session_id: 'k', leased_to }))
    );

  it('is where the last answer says, whoever has asked', async () => {
    server.on('GET remotes', { remotes: [team] });
    const remotes = new Remotes(api, states);
    events.tell(aMoved());
    answers('desk');
    await remotes.lookFor(aMoved());
    expect(remotes.whereIs(aMoved())?.runsOn).toBe('desk');
    answers('lap');
    await remotes.refresh();
    expect(remotes.whereIs(aMoved())?.runsOn).toBe('lap');
    // The list's answer is recent.
    await remotes.lookFor(aMoved());
    expect(server.requests).toEqual([
      'GET remotes/team/sessions',
      'GET remotes',
      'GET remotes/team/sessions'
    ]);
    expect(remotes.known[0].listing).not.toBeNull();
  });

  it('is asked for once by all who look at the same time', async () => {
    const remotes = new Remotes(api, states);
    events.tell(aMoved());
    answers('desk');
    await Promise.all([remotes.lookFor(aMoved()), remotes.find(aMoved())]);
    expect(server.requests).toEqual(['GET remotes/team/sessions']);
  });

  it('is not taken from an answer that is older than the move', async () => {
    server.on('GET remotes', { remotes: [team] });
    answers('desk');
    const remotes = new Remotes(api, states);
    await remotes.look();
    itIs(1000);
    answers('');
    events.tell(aMoved());
    expect(remotes.whereIs(aMoved())).toBeNull();
    // A user has looked at the list, so it is requested again.
    await remotes.refresh();
    expect(remotes.whereIs(aMoved())?.runsOn).toBe('');
    itIs(2000);
    events.tell(aKernel());
    expect(remotes.whereIs(aKernel())).toBeNull();
  });

  it('is not known while its remote does not answer', async () => {
    const remotes = new Remotes(api, states);
    events.tell(aMoved());
    server.on('GET remotes/team/sessions', new TypeError('gone'));
    expect(await remotes.find(aMoved())).toBeNull();
  });
});

describe('elsewhere', () => {
  const known = (...sessions: RemoteListing['sessions']) => [
    { name: 'team', listing: listing('team', ...sessions), problem: null }
  ];
  const ids = (
    remotes: Parameters<typeof elsewhere>[0],
    here: string[] = [],
    paths: string[] = []
  ) =>
    elsewhere(remotes, new Set(here), paths).map(
      ({ snapshot }) => snapshot.snapshot_id
    );

  it('leaves out whose newest snapshot is here', () => {
    const one = aRemoteSession({}, { snapshot_id: 'a', here: true });
    const other = aRemoteSession({}, { snapshot_id: 'b' });
    const empty = { ...aRemoteSession(), snapshots: [] };
    expect(ids(known(one, other, empty))).toEqual(['b']);
    expect(ids(known(one, other), ['b'])).toEqual([]);
  });

  it('keeps what went on elsewhere after it was here', () => {
    // In the order of the server. The clock of the other machine is behind.
    const session = aRemoteSession(
      {},
      { snapshot_id: 'newer', created: 10 },
      { snapshot_id: 'older', created: 20, here: true }
    );
    expect(ids(known(session))).toEqual(['newer']);
  });

  it('puts the notebooks of this machine first, then the newest', () => {
    const at = (path: string, snapshot_id: string, created: number) =>
      aRemoteSession({ path }, { snapshot_id, created });
    const remotes = known(
      at('x.ipynb', 'x', 30),
      at('open.ipynb', 'open', 1),
      at('y.ipynb', 'y', 40),
      at('known.ipynb', 'known', 2)
    );
    const paths = ['open.ipynb', 'known.ipynb'];
    expect(ids(remotes, [], paths)).toEqual(['open', 'known', 'y', 'x']);
  });

  it('puts what was moved before all, the latest first', () => {
    const at = (path: string, snapshot_id: string, moved_at = 0) =>
      aRemoteSession({ path, moved_at }, { snapshot_id, created: 1 });
    const remotes = known(
      at('open.ipynb', 'open'),
      at('x.ipynb', 'before', 10),
      at('y.ipynb', 'moved', 20),
      at('z.ipynb', 'not', 0)
    );
    const order = ids(remotes, [], ['open.ipynb']);
    expect(order).toEqual(['moved', 'before', 'open', 'not']);
  });

  it('offers once what two remotes have', () => {
    expect(
      ids([...known(aRemoteSession()), ...known(aRemoteSession())])
    ).toEqual(['offsite']);
  });
});

describe('the sessions that run elsewhere', () => {
  it('are those of other machines whose newest snapshot is here', () => {
    const here = { snapshot_id: 's', here: true };
    const away = aRemoteSession({ leased_to: 'desk' }, here);
    const sessions = [
      away,
      aRemoteSession({ leased_to: 'mine', runs_here: true }, here),
      aRemoteSession({}, here),
      aRemoteSession({ leased_to: 'desk' }, { snapshot_id: 'newer' })
    ];
    const known = [
      { name: 'team', listing: listing('team', ...sessions), problem: null }
    ];
    expect(runElsewhere(known, new Set())).toEqual([away]);
    expect(runElsewhere(known, new Set(['newer']))).toHaveLength(2);
  });
});

describe('the texts on uploads', () => {
  const label = (changes: Partial<UploadView>) =>
    uploadLabel(anUpload(changes));
  const caption = (changes: Partial<UploadView>) =>
    uploadCaption(anUpload(changes));

  it('say how far one is', () => {
    const sizes = { done_bytes: 1e6, total_bytes: 4e6 };
    expect(label({ state: 'uploading', ...sizes })).toBe('uploading 25%');
    expect(label({ state: 'uploading', total_bytes: 0 })).toBe('uploading');
    expect(caption({ state: 'uploading', ...sizes })).toBe(
      'Uploading to “team”: 1 MB of 4 MB.'
    );
    expect(caption({ state: 'uploaded' })).toBe('Uploaded to “team”.');
  });

  it('say what went wrong and what helps, also while it is tried again', () => {
    const error = {
      message: 'Denied.',
      code: 'denied',
      hint: 'Log in.',
      details: null
    };
    expect(caption({ state: 'failed', error })).toBe(
      'Not uploaded to “team”. Denied. Log in.'
    );
    expect(caption({ state: 'waiting', error })).toBe(
      'Waiting to be uploaded to “team”. Denied. Log in.'
    );
  });

  it('say which copies go with a deleted snapshot', () => {
    const text = (...uploads: UploadView[]) =>
      copiesOfDeleted({ uploads, pinned: false });
    expect(text()).toBe('');
    expect(text(anUpload({ state: 'waiting' }))).toBe('');
    expect(text(anUpload())).toBe('Its copy in “team” will be deleted, too.');
    expect(copiesOfDeleted({ uploads: [anUpload()], pinned: true })).toBe(
      'It is pinned, so “team” keeps its copy.'
    );
  });

  it('are about what matters most', () => {
    const states: UploadView['state'][] = [
      'uploaded',
      'waiting',
      'uploading',
      'failed'
    ];
    const uploads = states.map(state => anUpload({ state }));
    expect(weightiest(uploads)?.state).toBe('failed');
    expect(weightiest(uploads.slice(0, 3))?.state).toBe('uploading');
    expect(weightiest(uploads.slice(0, 1))?.state).toBe('uploaded');
    expect(weightiest([])).toBeNull();
  });

  it('name a session by what its user knows of it', () => {
    const title = (session = {}, snapshot = {}) => {
      const made = aRemoteSession(session, snapshot);
      const [first] = made.snapshots;
      return remoteTitle({ remote: '', session: made, snapshot: first });
    };
    expect(title()).toBe('a.ipynb');
    expect(title({ title: 'Thesis' })).toBe('Thesis');
    expect(title({ title: 'Thesis' }, { title: 'Trained' })).toBe('Trained');
  });
});

describe('fetching', () => {
  const place = { remote: 'team', sessionId: 'session', snapshotId: 'offsite' };
  const aFetch = () => aSave({ kind: 'fetch', operation_id: 'f' });
  const openNotebook = jest.fn();
  const takeBack = jest.fn();
  const putCells = jest.fn(async () => takeBack);
  const busy = new Set<string>();

  let events: FakeEvents;
  let states: KernelStates;
  let commands: CommandRegistry;

  const run = () => commands.execute(fetchCommandId, { ...place });
  const told = () =>
    Notification.manager.notifications.map(({ message }) => message);

  function estimate(changes: Partial<FetchEstimate> = {}): FetchEstimate {
    const session = aRemoteSession();
    return {
      session,
      snapshot: session.snapshots[0],
      move_bytes: 30e6,
      here_bytes: 10e6,
      obstacles: [],
      warnings: [],
      hint: '',
      ...changes
    };
  }

  const estimates = (changes: Partial<FetchEstimate> = {}) =>
    server.on(
      'GET remotes/team/snapshots/offsite?session_id=session',
      estimate(changes)
    );

  beforeEach(async () => {
    events = new FakeEvents();
    busy.clear();
    openNotebook.mockClear();
    server
      .on('GET kernels', { kernels: [] })
      .on('GET kernels/new', aKernel({ kernel_id: 'new' }))
      .on('POST remotes/team/snapshots/offsite/fetch', aFetch())
      .on('GET operations/f?wait=1', {
        ...aDone({ kind: 'fetch', operation_id: 'f' })
      })
      .on('POST snapshots/offsite/resume', {
        ...aDone({ kind: 'resume', kernel_id: 'new' }),
        path: 'work/a.ipynb'
      });
    estimates();
    states = new KernelStates(api, events.stream);
    await states.refreshAll();
    commands = new CommandRegistry();
    const operations = new Operations(states, chosen());
    const isBusy = (path: string) => busy.has(path);
    addFetchCommand(
      commands,
      new FetchActions(api, operations, states, putCells, isBusy, openNotebook)
    );
  });

  afterEach(() => {
    Notification.dismiss();
  });

  it('tells what it moves, fetches, resumes into the notebook and shows it', async () => {
    const running = run();
    const shown = await dialog('Fetch a.ipynb from “team”?');
    expect(shown.textContent).toContain(
      '30 MB to download; 10 MB already on this'
    );
    expect(shown.textContent).toContain(
      'It runs nowhere now. It was last saved on laptop '
    );
    expect(shown.textContent).toContain('The copy on laptop stays.');
    expect(shown.textContent).toContain('into the notebook work/a.ipynb');
    expect(commands.isEnabled(fetchCommandId, { ...place })).toBe(false);
    press(shown, 'accept');
    await running;
    expect(server.bodies).toEqual([
      JSON.stringify({ session_id: 'session', force: false, take_over: false }),
      JSON.stringify({ path: 'work/a.ipynb' })
    ]);
    expect(openNotebook).toHaveBeenCalledWith('work/a.ipynb');
    expect(told()).toEqual([
      'Resumed a.ipynb in 0.01 s',
      'Fetched a.ipynb in 0.01 s: 35.4 MB'
    ]);
    expect(commands.isEnabled(fetchCommandId, { ...place })).toBe(true);
  });

  it('resumes into a copy where the notebook has a kernel, which it leaves alone', async () => {
    busy.add('work/a.ipynb');
    const running = run();
    const shown = await dialog('has a kernel here, which keeps running');
    press(shown, 'accept');
    await running;
    expect(server.bodies[1]).toBe('{}');
  });

  describe('into the suspended kernel of the session', () => {
    let moved_to: string | null;
    const own = () =>
      aKernel({
        kernel_id: 'trained-elsewhere',
        state: 'suspended',
        path: 'mine.ipynb',
        moved_to
      });
    const fetchInto = async (resumed: Answer) => {
      events.tell(own());
      busy.add('work/a.ipynb');
      const session = aRemoteSession({}, { kernel_id: 'trained-elsewhere' });
      estimates({ session, snapshot: session.snapshots[0] });
      server.on('POST snapshots/offsite/resume', resumed);
      server.on('GET kernels/trained-elsewhere', own());
      const running = run();
      press(await dialog('It goes on in'), 'accept');
      await running;
    };

    beforeEach(() => {
      moved_to = 'team';
      putCells.mockClear();
      takeBack.mockClear();
    });

    it('leaves a branch of the session alone, whose notebook is a copy', async () => {
      moved_to = null;
      events.tell(own());
      const session = aRemoteSession({}, { kernel_id: 'trained-elsewhere' });
      estimates({ session, snapshot: session.snapshots[0] });
      const running = run();
      const shown = await dialog('into the notebook work/a.ipynb');
      expect(shown.textContent).toContain('own kernel is in mine.ipynb here');
      press(shown, 'accept');
      await running;
      expect(putCells).toHaveBeenCalledWith(
        { path: 'work/a.ipynb', snapshot_id: null },
        'offsite'
      );
      expect(server.bodies[1]).toBe(JSON.stringify({ path: 'work/a.ipynb' }));
    });

    it('goes on in its notebook, which gets the snapshot’s cells before', async () => {
      const done = aDone({ kind: 'resume', kernel_id: 'trained-elsewhere' });
      await fetchInto({ ...done, path: 'mine.ipynb' });
      expect(putCells).toHaveBeenCalledWith(
        expect.objectContaining({ path: 'mine.ipynb' }),
        'offsite'
      );
      expect(server.bodies[1]).toBe(JSON.stringify({ path: 'mine.ipynb' }));
      expect(takeBack).not.toHaveBeenCalled();
      expect(told()[0]).toBe('Resumed mine.ipynb in 0.01 s');
    });

    it('takes the cells back if the resume fails', async () => {
      await fetchInto(refused(409, { message: 'No room.', code: 'x' }));
      expect(takeBack).toHaveBeenCalled();
    });
  });

  it('fetches nothing that is not wanted', async () => {
    const running = run();
    press(await dialog('Fetch a.ipynb'), 'reject');
    await running;
    expect(server.bodies).toEqual([]);
    expect(told()).toEqual([]);
  });

  it('names obstacles and what helps, and then resumes nothing', async () => {
    const obstacles = ['The driver is 570, it was 580.'];
    const warnings = ['Memory is short.'];
    estimates({ obstacles, warnings, hint: 'Update it.' });
    const running = run();
    const shown = await dialog('cannot be resumed on this machine');
    for (const text of [...obstacles, ...warnings, 'Update it.']) {
      expect(shown.textContent).toContain(text);
    }
    press(shown, 'accept');
    await running;
    expect(server.bodies).toEqual([
      JSON.stringify({ session_id: 'session', force: true, take_over: false })
    ]);
    expect(told()).toEqual(['Fetched a.ipynb in 0.01 s: 35.4 MB']);
  });

  describe('what another machine runs', () => {
    const held = refused(409, {
      message: 'Session session runs on machine desk, since 10:00.',
      code: 'session_held',
      hint: null,
      details: null
    });
    const question =
      'Session session runs on machine desk, since 10:00. Taking over does not stop it there:';

    beforeEach(() => {
      server.on('POST remotes/team/snapshots/offsite/fetch', held, aFetch());
    });

    it('is taken over after one question, which says where it runs', async () => {
      const leased = { leased_to: 'desk', leased_since: 500 };
      estimates({ session: { ...aRemoteSession(), ...leased } });
      server.on('POST remotes/team/snapshots/offsite/fetch', aFetch());
      const running = run();
      const shown = await dialog('It runs on desk now, since ');
      expect(shown.textContent).toContain('It was last saved there ');
      expect(shown.textContent).toContain('The kernel on desk is not stopped');
      expect(shown.textContent).toContain('Take Over and Resume');
      press(shown, 'accept');
      await running;
      expect(JSON.parse(server.bodies[0])).toEqual({
        session_id: 'session',
        force: false,
        take_over: true
      });
      expect(openNotebook).toHaveBeenCalledWith('work/a.ipynb');
    });

    it('since just now is taken over if that is wanted, then resumed', async () => {
      const running = run();
      press(await dialog('Fetch a.ipynb'), 'accept');
      press(await dialog(question), 'accept');
      await running;
      const asked = { session_id: 'session', force: false, take_over: false };
      expect(server.bodies.map(body => JSON.parse(body))).toEqual([
        asked,
        { ...asked, take_over: true },
        { path: 'work/a.ipynb' }
      ]);
      expect(openNotebook).toHaveBeenCalledWith('work/a.ipynb');
    });

    it('is left there otherwise', async () => {
      const running = run();
      press(await dialog('Fetch a.ipynb'), 'accept');
      press(await dialog(question), 'reject');
      await running;
      expect(server.bodies.length).toBe(1);
      expect(told()).toEqual(['Fetching a.ipynb was canceled']);
    });
  });

  it('says why nothing is known of a snapshot', async () => {
    const record = {
      message: 'Denied.',
      code: 'remote_denied',
      hint: 'Log in.',
      details: null
    };
    server.on(
      'GET remotes/team/snapshots/offsite?session_id=session',
      refused(502, record)
    );
    await run();
    expect(told()).toEqual(['Reading “team” failed: Denied. Log in.']);
  });

  it('resumes nothing after a fetch that failed', async () => {
    const error = {
      message: 'Damaged.',
      code: 'remote_invalid',
      hint: null,
      details: null
    };
    server.on('GET operations/f?wait=1', {
      ...aFetch(),
      state: 'failed',
      error
    });
    const running = run();
    press(await dialog('Fetch a.ipynb'), 'accept');
    await running;
    expect(told()).toEqual(['Fetching a.ipynb failed: Damaged.']);
    expect(server.requests).not.toContain('POST snapshots/offsite/resume');
  });

  it('shows how far it is, and does not tell its end twice', async () => {
    const seen: ProgressRecord[] = [];
    const at = (done_bytes: number) => ({
      ...aFetch(),
      progress: { stage: 'fetch', done_bytes, total_bytes: 4e6, seconds: 1 }
    });
    const done = aDone({ kind: 'fetch', operation_id: 'f' });
    server.on('GET operations/f?wait=1', at(1e6), at(3e6), done);
    const elsewhereEnded = jest.fn();
    states.endedElsewhere.connect(elsewhereEnded);
    const started = api.fetch(place, { force: false, take_over: false });
    await states.finish(started, progress => seen.push(progress));
    expect(seen.map(({ done_bytes }) => done_bytes)).toEqual([0, 1e6, 3e6]);
    events.emit({ ...done, schema_id: OPERATION_EVENT_SCHEMA });
    expect(elsewhereEnded).not.toHaveBeenCalled();
  });
});
