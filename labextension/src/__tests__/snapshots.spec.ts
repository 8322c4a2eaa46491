import { GpuCkptApi, GpuCkptError } from '../shared/api';
import {
  OPERATION_EVENT_SCHEMA,
  SNAPSHOT_EVENT_SCHEMA
} from '../shared/server-events';
import { Snapshots } from '../shared/snapshots';
import { anUpload, aSnapshot, FakeEvents, FakeServer, refused } from './fakes';

const store = { path: '/store', snapshots: 1 };

let server: FakeServer;
let events: FakeEvents;
let snapshots: Snapshots;

const ids = () => snapshots.list?.map(({ snapshot_id }) => snapshot_id);
const questions = () =>
  server.requests.filter(request => request === 'GET snapshots').length;

function tell(change: string): void {
  const schema_id = SNAPSHOT_EVENT_SCHEMA;
  events.emit({ schema_id, snapshot_id: 's', kernel_id: 'k', change });
}

beforeEach(() => {
  events = new FakeEvents();
  server = new FakeServer()
    .on('GET snapshots', { snapshots: [aSnapshot()] })
    .on('GET store', store);
  const api = new GpuCkptApi(server.settings);
  snapshots = new Snapshots(api, events.stream);
});

describe('Snapshots', () => {
  it('asks nothing while nobody looks', () => {
    tell('added');
    expect(snapshots.list).toBeNull();
    expect(server.requests).toEqual([]);
  });

  it('knows list and store as soon as somebody does', async () => {
    snapshots.watch();
    await snapshots.refresh();
    expect(ids()).toEqual(['s']);
    expect(snapshots.store).toEqual(store);
  });

  it.each(['added', 'changed', 'restored'])(
    'asks again when a snapshot was %s',
    async change => {
      snapshots.watch();
      await snapshots.refresh();
      const asked = questions();
      tell(change);
      await snapshots.refresh();
      expect(questions()).toBe(asked + 1);
    }
  );

  it('asks again when an operation has made one', async () => {
    snapshots.watch();
    await snapshots.refresh();
    const asked = questions();
    const record = { operation_id: 'o', kind: 'save', state: 'succeeded' };
    events.emit({ schema_id: OPERATION_EVENT_SCHEMA, ...record });
    await snapshots.refresh();
    expect(questions()).toBe(asked + 1);
  });

  it('asks no more than it can read', async () => {
    snapshots.watch();
    for (let count = 0; count < 20; count += 1) {
      tell('changed');
    }
    await snapshots.refresh();
    expect(questions()).toBeLessThanOrEqual(2);
  });

  it('asks no more when nobody looks any more', async () => {
    const watching = snapshots.watch();
    await snapshots.refresh();
    watching.dispose();
    const asked = questions();
    tell('added');
    await Promise.resolve();
    expect(questions()).toBe(asked);
  });

  it('follows an upload to its end while somebody looks', async () => {
    jest.useFakeTimers();
    try {
      const going = aSnapshot({ uploads: [anUpload({ state: 'uploading' })] });
      const gone = aSnapshot({ uploads: [anUpload()] });
      server.on('GET snapshots', { snapshots: [going] }, { snapshots: [gone] });
      snapshots.watch();
      await snapshots.refresh();
      const asked = questions();
      await jest.advanceTimersByTimeAsync(10_000);
      expect(snapshots.list?.[0].uploads[0].state).toBe('uploaded');
      expect(questions()).toBeLessThanOrEqual(asked + 1);
    } finally {
      jest.useRealTimers();
    }
  });

  it('drops at once what was removed elsewhere', async () => {
    await snapshots.refresh();
    tell('removed');
    expect(ids()).toEqual([]);
  });

  it('changes, deletes and undeletes', async () => {
    await snapshots.refresh();
    server
      .on('PATCH snapshots/s', aSnapshot({ title: 'Before' }))
      .on('DELETE snapshots/s', { status: 204, body: '' })
      .on('POST snapshots/s/undelete', aSnapshot());
    await snapshots.change('s', { title: 'Before' });
    expect(snapshots.list?.[0].title).toBe('Before');
    await snapshots.delete('s');
    expect(ids()).toEqual([]);
    await snapshots.undelete('s');
    expect(ids()).toEqual(['s']);
  });

  it('keeps what it could not delete', async () => {
    await snapshots.refresh();
    const record = { message: 'In use.', code: 'snapshot_in_use', hint: '' };
    server.on('DELETE snapshots/s', refused(409, record));
    await expect(snapshots.delete('s')).rejects.toBeInstanceOf(GpuCkptError);
    expect(ids()).toEqual(['s']);
  });

  it('does without a picture of the store', async () => {
    server.on('GET store', { status: 404, body: '' });
    await snapshots.refresh();
    expect(ids()).toEqual(['s']);
    expect(snapshots.store).toBeNull();
    expect(snapshots.problem).toBeNull();
  });

  it('says why it knows nothing, and keeps what it knew', async () => {
    await snapshots.refresh();
    server.on('GET snapshots', new TypeError('gone'));
    await snapshots.refresh();
    expect(snapshots.problem?.code).toBe(GpuCkptError.UNREACHABLE);
    expect(ids()).toEqual(['s']);
  });

  it('finds one that it has not heard of', async () => {
    await expect(snapshots.find('s')).resolves.toMatchObject({
      snapshot_id: 's'
    });
    await expect(snapshots.find('other')).resolves.toBeUndefined();
  });

  it('takes a snapshot in', async () => {
    server.on('POST snapshots/import', { snapshots: [aSnapshot()] });
    await snapshots.import(new Blob(['tar']));
    expect(ids()).toEqual(['s']);
  });
});
