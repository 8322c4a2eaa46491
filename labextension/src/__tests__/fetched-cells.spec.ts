import { Notification } from '@jupyterlab/apputils';

import { GpuCkptApi, GpuCkptError } from '../shared/api';
import type { IFormerNotebook } from '../snapshot/fetched-cells';
import { FetchedCells } from '../snapshot/fetched-cells';
import type { ICell, INotebookCells } from '../snapshot/stored-cells';
import { aKernel, dialog, FakeServer, press, refused } from './fakes';

const cell = (id: string, source: string): ICell => ({
  cell_type: 'code',
  id,
  source,
  metadata: {},
  execution_count: null,
  outputs: []
});

const [mine, theirs, edited] = ['mine', 'theirs', 'edited'].map(source => [
  cell('a', source)
]);

describe('the cells of a session that comes back', () => {
  let server: FakeServer;
  let cells: ICell[];
  let open: INotebookCells | null;

  const kernel = aKernel({ path: 'work/a.ipynb', snapshot_id: 'before' });
  const stored = (content: ICell[] | null) => ({
    notebook: content && { cells: content },
    modified: 1
  });
  const put = (former: IFormerNotebook = kernel) =>
    new FetchedCells(new GpuCkptApi(server.settings), async () => open).put(
      former,
      'fetched'
    );

  beforeEach(() => {
    cells = mine;
    open = {
      isShared: false,
      read: () => cells,
      put: wanted => {
        cells = wanted;
      }
    };
    server = new FakeServer()
      .on('GET snapshots/before/notebook', stored(mine))
      .on('GET snapshots/fetched/notebook', stored(theirs));
  });

  afterEach(() => {
    Notification.dismiss();
  });

  it('replace those that the snapshot here has, and can be taken back', async () => {
    const takeBack = await put();
    expect(cells).toEqual(theirs);
    const [told] = Notification.manager.notifications;
    expect(told.message).toBe(
      'a.ipynb has the cells of the other machine now: 1 cell changes.'
    );
    expect(told.options.actions?.[0].label).toBe('Undo');
    await takeBack();
    expect(cells).toEqual(mine);
    expect(Notification.manager.notifications).toEqual([]);
  });

  it.each([
    ['accept', theirs],
    ['reject', edited]
  ] as const)(
    'replace those that were edited meanwhile only if their user wants it: %s',
    async (answer, then) => {
      cells = edited;
      const done = put();
      press(await dialog('Replace the cells of a.ipynb?'), answer);
      await done;
      expect(cells).toEqual(then);
    }
  );

  it('replace those of a notebook without a session here only if its user wants it', async () => {
    const done = put({ path: 'work/a.ipynb', snapshot_id: null });
    const shown = await dialog('Replace the cells of a.ipynb?');
    expect(shown.textContent).toContain('differs from that of the session');
    press(shown, 'accept');
    await (
      await done
    )();
    expect(cells).toEqual(mine);
  });

  it('stay as they were if they cannot be written', async () => {
    const failure = new GpuCkptError({ message: 'Full.', code: 'not_written' });
    open = { ...(open as INotebookCells), put: () => Promise.reject(failure) };
    await (
      await put()
    )();
    expect(Notification.manager.notifications.map(one => one.message)).toEqual([
      expect.stringContaining('Changing the cells of a.ipynb failed')
    ]);
  });

  it('stay where others have the notebook open, or the snapshot has none', async () => {
    open = { ...(open as INotebookCells), isShared: true };
    await put();
    open = { ...open, isShared: false };
    server.on('GET snapshots/fetched/notebook', stored(null));
    await put();
    const record = { message: 'Gone.', code: 'x', hint: null, details: null };
    server.on('GET snapshots/fetched/notebook', refused(404, record));
    await put();
    open = null;
    await (
      await put()
    )();
    expect(cells).toEqual(mine);
  });
});
