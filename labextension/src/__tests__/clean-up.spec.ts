import { Notification } from '@jupyterlab/apputils';
import { CommandRegistry } from '@lumino/commands';

import { GpuCkptApi } from '../shared/api';
import { addCleanUpCommand, cleanUpCommandId } from '../snapshot/clean-up';
import { Snapshots } from '../shared/snapshots';
import {
  aSnapshot,
  dialog,
  FakeEvents,
  FakeServer,
  press,
  refused
} from './fakes';

const PRUNE = 'POST snapshots/prune';
const retention = {
  keep_last: 3,
  keep_within_seconds: 0,
  keep_suspends: 10,
  keep_tool_saves: 0,
  thins: false,
  max_bytes: 0
};

function report(removed: boolean) {
  const snapshot = aSnapshot({ title: 'Before', cause: 'autosave' });
  return { verdicts: [{ snapshot, removed }], freed_bytes: 45e6 };
}

describe('a clean-up', () => {
  let server: FakeServer;
  let snapshots: Snapshots;
  const messages = () =>
    Notification.manager.notifications.map(({ message }) => message);

  beforeEach(() => {
    server = new FakeServer()
      .on('GET snapshots', { snapshots: [] })
      .on('GET store', { retention });
    const api = new GpuCkptApi(server.settings);
    snapshots = new Snapshots(api, new FakeEvents().stream);
    Notification.dismiss();
  });

  const begin = () => {
    const registry = new CommandRegistry();
    addCleanUpCommand(registry, snapshots);
    return registry.execute(cleanUpCommandId);
  };

  it('says what goes before it deletes anything', async () => {
    server.on(PRUNE, report(true));
    const done = begin();
    const shown = await dialog('1 snapshot will be deleted');
    expect(shown.textContent).toContain('frees about 45 MB');
    expect(shown.textContent).toContain(
      'An automatic snapshot expires when its kernel has 3 newer ones.'
    );
    expect(shown.textContent).toContain('a.ipynb: Before · autosave');
    const policy = '{"policy":{"keep_last":1,"manual_too":false}';
    expect(server.bodies).toEqual([`${policy},"dry_run":true}`]);
    press(shown, 'accept');
    await done;
    expect(server.bodies[1]).toBe(`${policy},"dry_run":false}`);
    expect(messages()).toEqual(['Deleted 1 snapshot: freed 45 MB']);
  });

  it('deletes nothing if the user does not want that, or nothing would go', async () => {
    server.on(PRUNE, report(true));
    let done = begin();
    press(await dialog('1 snapshot will be deleted'), 'reject');
    await done;
    server.on(PRUNE, report(false));
    done = begin();
    press(await dialog('No snapshot would be deleted.'), 'accept');
    await done;
    const asked = server.requests.filter(request => request === PRUNE);
    expect(asked).toHaveLength(2);
    expect(messages()).toEqual([
      'No snapshot was deleted: the dialog listed none.'
    ]);
  });

  it('says why it failed', async () => {
    server.on(
      PRUNE,
      report(true),
      refused(500, { message: 'No disk.', code: 'x' })
    );
    const done = begin();
    press(await dialog('1 snapshot will be deleted'), 'accept');
    await done;
    expect(messages()[0]).toContain('Cleaning up failed: No disk.');
  });
});
