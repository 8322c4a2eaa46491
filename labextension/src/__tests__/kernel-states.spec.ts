import { GpuCkptApi, GpuCkptError } from '../shared/api';
import { KernelStates } from '../shared/kernel-states';
import {
  KERNEL_ACTION_SCHEMA,
  OPERATION_EVENT_SCHEMA
} from '../shared/server-events';
import {
  aDone,
  aKernel,
  aSave,
  FakeEvents,
  FakeServer,
  refused
} from './fakes';

let server: FakeServer;
let events: FakeEvents;
let states: KernelStates;

async function start(): Promise<void> {
  const api = new GpuCkptApi(server.settings, 0);
  states = new KernelStates(api, events.stream);
  await states.refreshAll();
}

beforeEach(() => {
  events = new FakeEvents();
  server = new FakeServer()
    .on('GET kernels', { kernels: [aKernel()] })
    .on('GET kernels/k', aKernel());
});

describe('KernelStates', () => {
  it('knows all kernels from the start', async () => {
    await start();
    expect(states.get('k')).toEqual(aKernel());
    expect(states.get('other')).toBeUndefined();
    expect(states.problem('k')).toBeNull();
  });

  it('follows the event stream', async () => {
    await start();
    const changed = jest.fn();
    states.changed.connect(changed);
    events.tell(aKernel({ state: 'suspended', snapshot_id: 's' }));
    expect(states.get('k')?.state).toBe('suspended');
    expect(changed).toHaveBeenCalledWith(states, 'k');
  });

  it('ignores the events of others', async () => {
    await start();
    events.emit({ schema_id: 'https://x/v1', kernel_id: 'k', state: 'lost' });
    expect(states.get('k')?.state).toBe('running');
  });

  it('keeps an event that overtook an answer', async () => {
    await start();
    const answer = states.refresh('k');
    events.tell(aKernel({ state: 'suspended' }));
    await answer;
    expect(states.get('k')?.state).toBe('suspended');
  });

  it('takes in an answer that came after all events', async () => {
    await start();
    events.tell(aKernel({ state: 'saving' }));
    await states.refresh('k');
    expect(states.get('k')?.state).toBe('running');
  });

  it('remembers why nothing is known, until something is', async () => {
    server.on('GET kernels', { status: 404, body: '' });
    await start();
    expect(states.problem('k')?.code).toBe(GpuCkptError.NO_EXTENSION);
    events.tell(aKernel());
    expect(states.problem('k')).toBeNull();
  });

  it('forgets a kernel that the server does not know any more', async () => {
    await start();
    const record = { message: 'Gone.', code: 'kernel_not_found', hint: '' };
    server.on('GET kernels/k', refused(404, record));
    await states.refresh('k');
    expect(states.get('k')).toBeUndefined();
    expect(states.problem('k')?.message).toBe('Gone.');
    expect(states.problem('other')).toBeNull();
  });

  it('keeps what it knows while the server is away', async () => {
    await start();
    server.on('GET kernels/k', new TypeError('gone'));
    await states.refresh('k');
    expect(states.get('k')).toEqual(aKernel());
  });

  it('knows a kernel that was started elsewhere', async () => {
    await start();
    server.on('GET kernels/new', aKernel({ kernel_id: 'new' }));
    const known = new Promise<void>(resolve =>
      states.changed.connect((_, id) => id === 'new' && resolve())
    );
    act(events, 'start', 'new');
    await known;
    expect(states.all().map(({ kernel_id }) => kernel_id)).toEqual([
      'k',
      'new'
    ]);
  });

  it('forgets a kernel that was shut down, wherever', async () => {
    await start();
    act(events, 'shutdown', 'k');
    expect(states.all()).toEqual([]);
  });

  it('keeps a kernel whose shutdown failed', async () => {
    await start();
    act(events, 'shutdown', 'k', 'error');
    expect(states.get('k')).toBeDefined();
  });

  it('forgets what is not listed any more, unless it was heard of meanwhile', async () => {
    await start();
    events.tell(aKernel({ kernel_id: 'old' }));
    const refreshed = states.refreshAll();
    events.tell(aKernel({ kernel_id: 'new' }));
    await refreshed;
    expect(states.get('old')).toBeUndefined();
    expect(states.get('new')).toBeDefined();
  });
});

describe('KernelStates.run', () => {
  it('counts as in flight from the click to the end', async () => {
    server
      .on('POST kernels/k/save', aSave())
      .on('GET operations/o?wait=20', aDone());
    await start();
    const operation = states.run('save', 'k');
    expect(states.inFlight('k')).toBe('save');
    await expect(operation).resolves.toEqual(aDone());
    expect(states.inFlight('k')).toBeNull();
  });

  it('is ready for the next operation when the kernel has reached its state, before the reply', async () => {
    server
      .on('POST kernels/k/suspend', aSave({ kind: 'suspend' }))
      .on('GET operations/o?wait=20', aDone({ kind: 'suspend' }));
    await start();
    const suspended = states.run('suspend', 'k');
    const operation = aSave({ kind: 'suspend' });
    events.tell(aKernel({ state: 'suspending', operation }));
    expect(states.inFlight('k')).toBe('suspend');
    events.tell(aKernel({ state: 'suspended', operation }));
    expect(states.inFlight('k')).toBeNull();
    // The end of the first one does not end what was requested meanwhile.
    server.on('POST kernels/k/resume', new TypeError('no answer'));
    const resumed = states.run('resume', 'k').catch(() => undefined);
    expect(states.inFlight('k')).toBe('resume');
    await Promise.all([suspended, resumed]);
  });

  it('is ready for the next save at the event of the end, before the reply', async () => {
    server
      .on('POST kernels/k/save', aSave())
      .on('GET operations/o?wait=20', new TypeError('no answer yet'));
    await start();
    const saved = states.run('save', 'k');
    while (!server.requests.includes('GET operations/o?wait=20')) {
      await new Promise(resolve => setTimeout(resolve, 1));
    }
    const changed = jest.fn();
    states.changed.connect(changed);
    end(events, { operation_id: 'older', kind: 'save' });
    expect(states.inFlight('k')).toBe('save');
    end(events, { operation_id: 'o', kind: 'save' });
    expect(states.inFlight('k')).toBeNull();
    expect(changed).toHaveBeenCalledWith(states, 'k');
    server.on('GET operations/o?wait=20', aDone());
    await saved;
  });

  it('sees operations that were started elsewhere', async () => {
    await start();
    events.tell(aKernel({ state: 'saving', operation: aSave() }));
    expect(states.inFlight('k')).toBe('save');
  });

  it('knows the new state when it is done, even if the event was lost', async () => {
    server
      .on('POST kernels/k/suspend', aSave({ kind: 'suspend' }))
      .on('GET operations/o?wait=20', aDone({ kind: 'suspend' }));
    await start();
    server.on('GET kernels/k', aKernel({ state: 'suspended' }));
    await states.run('suspend', 'k');
    expect(states.get('k')?.state).toBe('suspended');
  });

  it('throws what made an operation fail', async () => {
    const error = {
      message: 'The disk is full.',
      code: 'store_full',
      hint: 'Delete snapshots.',
      details: 'needed 5, free 3'
    };
    server.on('POST kernels/k/save', aSave({ state: 'failed', error }));
    await start();
    await expect(states.run('save', 'k')).rejects.toMatchObject(error);
    expect(states.inFlight('k')).toBeNull();
  });

  it('tells a cancelled operation by its code', async () => {
    server.on('POST kernels/k/save', aSave({ state: 'cancelled' }));
    await start();
    await expect(states.run('save', 'k')).rejects.toMatchObject({
      code: GpuCkptError.CANCELLED
    });
  });

  it('sends what belongs to it', async () => {
    server.on('POST kernels/k/roll_back', aDone({ kind: 'roll_back' }));
    await start();
    await states.run('roll_back', 'k', { snapshot_id: 's' });
    expect(server.bodies).toEqual(['{"snapshot_id":"s"}']);
  });

  it('tells the end of what others asked for, and only of that', async () => {
    server.on('POST kernels/k/save', aDone());
    await start();
    const ended: string[] = [];
    states.endedElsewhere.connect((_, end) => ended.push(end.operation_id));
    const own = states.run('save', 'k');
    end(events, { operation_id: 'o', kind: 'save' }); // before its id is known
    await own;
    end(events, { operation_id: 'o', kind: 'save' });
    end(events, { operation_id: 'other', kind: 'save' });
    expect(ended).toEqual(['other']);
  });

  it('is free again after a refusal', async () => {
    const record = { message: 'Busy.', code: 'kernel_busy', hint: 'Wait.' };
    server.on('POST kernels/k/save', refused(409, record));
    await start();
    await expect(states.run('save', 'k')).rejects.toMatchObject(record);
    expect(states.inFlight('k')).toBeNull();
  });
});

describe('KernelStates.runFrom', () => {
  // To the server it is the resume of a new kernel.
  const started = aSave({ kind: 'resume', kernel_id: 'new', path: 'b.ipynb' });

  it('tells the id of the new kernel at once, and knows it in the end', async () => {
    server
      .on('POST snapshots/s/branch', started)
      .on('GET operations/o?wait=20', {
        ...aDone({ kind: 'resume' }),
        kernel_id: 'new'
      })
      .on('GET kernels/new', aKernel({ kernel_id: 'new' }));
    await start();
    const onStarted = jest.fn();
    const ended = jest.fn();
    states.endedElsewhere.connect(ended);
    const branch = states.runFrom('branch', 's', {}, onStarted);
    end(events, { operation_id: 'o', kind: 'resume', kernel_id: 'new' });
    await expect(branch).resolves.toMatchObject({
      kind: 'branch',
      path: 'b.ipynb'
    });
    expect(ended).not.toHaveBeenCalled();
    expect(onStarted.mock.calls[0][0]).toMatchObject({ kernel_id: 'new' });
    expect(states.get('new')?.state).toBe('running');
    expect(states.inFlight('k')).toBeNull();
  });

  it('throws what refused it', async () => {
    const record = { message: 'No room.', code: 'x', hint: null };
    server.on('POST snapshots/s/branch', refused(409, record));
    await start();
    await expect(states.runFrom('branch', 's')).rejects.toMatchObject({
      message: 'No room.'
    });
  });
});

function act(
  events: FakeEvents,
  action: string,
  kernel_id: string,
  status = 'success'
): void {
  events.emit({ schema_id: KERNEL_ACTION_SCHEMA, action, kernel_id, status });
}

function end(events: FakeEvents, changes: object): void {
  const record = { kernel_id: 'k', name: 'a', state: 'succeeded' };
  events.emit({ schema_id: OPERATION_EVENT_SCHEMA, ...record, ...changes });
}
