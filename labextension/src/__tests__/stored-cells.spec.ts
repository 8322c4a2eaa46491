import { YNotebook } from '@jupyter/ydoc';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { Contents } from '@jupyterlab/services';

import type { ICell, IOpenCells } from '../snapshot/stored-cells';
import {
  cellChanges,
  cellChangesText,
  cellsOf,
  cellsOfFile
} from '../snapshot/stored-cells';

const cell = (id: string, source: string, text?: string): ICell => ({
  cell_type: 'code',
  id,
  source,
  metadata: { trusted: false },
  execution_count: null,
  outputs: text ? [{ output_type: 'stream', name: 'stdout', text }] : []
});

const [first, second, third] = [cell('a', 'x'), cell('b', 'y'), cell('c', 'z')];

describe('cellChanges', () => {
  const changes = (then: ICell[], now: ICell[]) =>
    cellChangesText(cellChanges(then, now));

  it.each([
    ['', [first, second], [first, second]],
    ['1 cell is added.', [first, second], [first]],
    ['2 cells are removed.', [first], [first, second, third]],
    ['1 cell changes.', [cell('a', 'x', '1'), second], [first, second]],
    ['The order of the cells changes.', [second, first], [first, second]],
    [
      '1 cell is added. 1 cell is removed. 1 cell changes.',
      [cell('a', 'new'), third],
      [first, second]
    ]
  ])('are %j', (text, then, now) => {
    expect(changes(then, now)).toBe(text);
  });

  it('do not depend on trust and on how texts are stored', () => {
    const lines = [
      { output_type: 'stream', name: 'stdout', text: ['1\n', '2'] }
    ];
    const now = {
      ...cell('a', 'x'),
      outputs: lines,
      metadata: { trusted: true }
    };
    expect(changes([cell('a', 'x', '1\n2')], [now])).toBe('');
  });

  it('match the cells of older formats, which have no id, by their source', () => {
    const old = { ...first, id: undefined };
    expect(changes([old, old], [first, second])).toBe(
      '1 cell is added. 1 cell is removed.'
    );
  });
});

describe('cellsOf', () => {
  let notebook: YNotebook;
  const open = (more = {}): IOpenCells | null =>
    cellsOf({
      content: { model: { sharedModel: notebook, ...more } }
    } as unknown as NotebookPanel);
  const sources = () => notebook.cells.map(one => one.getSource());

  beforeEach(() => {
    notebook = new YNotebook();
    notebook.insertCells(0, [first, second, third] as never);
    notebook.clearUndoHistory();
  });

  it('are none where a snapshot must not replace them', () => {
    expect(cellsOf(undefined)).toBeNull();
    expect(open({ readOnly: true })).toBeNull();
  });

  it('are shared while another page has a collaborative notebook open', () => {
    notebook.awareness.setLocalStateField('user', { name: 'one' });
    const shared = open({ collaborative: true });
    expect(shared?.isShared).toBe(false);
    const states = notebook.awareness.getStates();
    states.set(notebook.awareness.clientID + 1, {});
    expect(shared?.isShared).toBe(false);
    states.set(notebook.awareness.clientID + 2, { user: { name: 'other' } });
    expect(shared?.isShared).toBe(true);
    expect(open()?.isShared).toBe(false);
  });

  it('puts cells back in place, as one undo step', () => {
    const untouched = notebook.cells[0];
    open()?.put([first, cell('d', 'w', 'out'), third, cell('e', 'v')]);
    expect(sources()).toEqual(['x', 'w', 'z', 'v']);
    expect(notebook.cells[0]).toBe(untouched);
    expect(notebook.cells[1].toJSON()).toMatchObject({
      metadata: { trusted: false },
      outputs: [{ text: 'out' }]
    });
    notebook.undo();
    expect(sources()).toEqual(['x', 'y', 'z']);
    expect(notebook.canUndo()).toBe(false);
  });

  it('puts back what it has read', () => {
    const cells = open();
    const before = cells?.read() ?? [];
    cells?.put([]);
    expect(sources()).toEqual([]);
    cells?.put(before);
    expect(sources()).toEqual(['x', 'y', 'z']);
  });
});

describe('cellsOfFile', () => {
  let file: { cells: ICell[]; metadata: object } | null;
  let writable: boolean;
  let open: IOpenCells | null;

  const contents = {
    get: async () => {
      if (!file) {
        throw new Error('There is no such file.');
      }
      return { content: file, writable };
    },
    save: async (_: string, { content }: { content: typeof file }) => {
      file = content;
    }
  } as unknown as Contents.IManager;
  const found = () => cellsOfFile(contents, 'a.ipynb', () => open);

  beforeEach(() => {
    file = { cells: [first], metadata: { kernelspec: 'mine' } };
    [writable, open] = [true, null];
  });

  it('are replaced in the file, of which the rest stays', async () => {
    const cells = await found();
    expect(cells?.read()).toEqual([first]);
    await cells?.put([second]);
    expect(file).toEqual({
      cells: [second],
      metadata: { kernelspec: 'mine' }
    });
  });

  it('are those of the page once it is open', async () => {
    const cells = await found();
    const put = jest.fn();
    open = { isShared: true, read: () => [third], put };
    expect(cells?.isShared).toBe(true);
    expect(cells?.read()).toEqual([third]);
    await cells?.put([second]);
    expect(put).toHaveBeenCalledWith([second]);
    expect(file?.cells).toEqual([first]);
  });

  it('are none where there is no file, or one that cannot be written', async () => {
    writable = false;
    expect(await found()).toBeNull();
    file = null;
    expect(await found()).toBeNull();
  });

  it('stay if the file is gone meanwhile', async () => {
    const cells = await found();
    file = null;
    await expect(cells?.put([second])).rejects.toThrow('no such file');
    expect(file).toBeNull();
  });
});
