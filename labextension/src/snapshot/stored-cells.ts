// The cells of a notebook here and those in a snapshot: their differences, and the way back as one undo step.

import type { INotebookModel, NotebookPanel } from '@jupyterlab/notebook';
import type { Contents } from '@jupyterlab/services';
import type { JSONValue } from '@lumino/coreutils';
import { JSONExt } from '@lumino/coreutils';

import { GpuCkptError } from '../shared/api';
import type { NotebookContent } from '../shared/records';
import { trans } from '../shared/translation';

/** The JSON of a cell. */
export type ICell = NotebookContent['cells'][number];

/** The cells of a notebook that can be replaced. */
export interface INotebookCells {
  /** Whether others edit the notebook, too; they keep it as it is. */
  readonly isShared: boolean;
  read(): ICell[];
  /** Replace the cells that differ. */
  put(cells: ICell[]): void | Promise<void>;
}

/** The cells of an open notebook, which are replaced in place, as one undo step. */
export interface IOpenCells extends INotebookCells {
  put(cells: ICell[]): void;
}

/** How the cells of a notebook change if those of a snapshot are put into it. */
export interface ICellChanges {
  added: number;
  removed: number;
  changed: number;
  /** Whether cells that stay have another order. */
  reordered: boolean;
}

/** Return the cells of a notebook; null for one that is not open or cannot be edited. */
export function cellsOf(panel: NotebookPanel | undefined): IOpenCells | null {
  const model = panel?.content.model;
  if (!model || model.readOnly) {
    return null;
  }
  return {
    get isShared() {
      // This page is one of those that are aware of each other. The server may be, too: as no user.
      const states = model.sharedModel.awareness.getStates().values();
      const pages = [...states].filter(state => state.user);
      return model.collaborative === true && pages.length > 1;
    },
    read: () => cellsIn(model.sharedModel),
    put: cells => {
      putCells(model.sharedModel, cells);
      // The notebook may be shorter now than it is scrolled.
      const { content } = panel;
      void content
        .scrollToItem?.(content.activeCellIndex)
        .catch(() => undefined);
    }
  };
}

/** Return the cells of a notebook that is not open; null if it has no file. `openCells`: returns its cells if it is opened meanwhile. */
export async function cellsOfFile(
  contents: Contents.IManager,
  path: string,
  openCells: () => IOpenCells | null
): Promise<INotebookCells | null> {
  const get = async () => {
    const { content, writable } = await contents.get(path, {
      type: 'notebook',
      content: true
    });
    return writable ? (content as NotebookContent) : null;
  };
  const found = await get().catch(() => null); // opening it reports why
  return (
    found && {
      get isShared() {
        return openCells()?.isShared ?? false;
      },
      read: () => openCells()?.read() ?? found.cells,
      put: async cells => {
        const open = openCells();
        if (open) {
          open.put(cells);
          return;
        }
        try {
          const content = { ...(await get()), cells };
          const model = { type: 'notebook', format: 'json', content } as const;
          await contents.save(path, model);
        } catch (error) {
          throw new GpuCkptError({
            message: (error as Error).message,
            code: 'not_written',
            hint: trans.__('The notebook is as it was.')
          });
        }
      }
    }
  );
}

/** Return the differences, as what happens if the cells `then` replace those that are there `now`. */
export function cellChanges(then: ICell[], now: ICell[]): ICellChanges {
  const left = new Map(now.map((cell, place) => [keyOf(cell, now), place]));
  const places: number[] = [];
  let [added, changed] = [0, 0];
  for (const cell of then) {
    // Cells of older formats have no id.
    const key = cell.id ? String(cell.id) : contentKey(cell, now, left);
    const place = left.get(key);
    if (place === undefined) {
      added += 1;
      continue;
    }
    left.delete(key);
    places.push(place);
    changed += isSame(cell, now[place]) ? 0 : 1;
  }
  const reordered = places.some((place, index) => place < places[index - 1]);
  return { added, removed: left.size, changed, reordered };
}

/** Return these differences as sentences; an empty text if there are none. */
export function cellChangesText({
  added,
  removed,
  changed,
  reordered
}: ICellChanges): string {
  return [
    added ? trans._n('1 cell is added.', '%1 cells are added.', added) : '',
    removed
      ? trans._n('1 cell is removed.', '%1 cells are removed.', removed)
      : '',
    changed ? trans._n('1 cell changes.', '%1 cells change.', changed) : '',
    reordered ? trans.__('The order of the cells changes.') : ''
  ]
    .filter(Boolean)
    .join(' ');
}

function cellsIn(notebook: INotebookModel['sharedModel']): ICell[] {
  return notebook.cells.map(cell => cell.toJSON() as ICell);
}

function putCells(
  notebook: INotebookModel['sharedModel'],
  cells: ICell[]
): void {
  const now = cellsIn(notebook);
  const shorter = Math.min(now.length, cells.length);
  let start = 0;
  while (start < shorter && isSame(cells[start], now[start])) {
    start += 1;
  }
  let end = 0;
  while (
    end < shorter - start &&
    isSame(cells[cells.length - 1 - end], now[now.length - 1 - end])
  ) {
    end += 1;
  }
  const fresh = cells.slice(start, cells.length - end);
  notebook.transact(() => {
    notebook.deleteCellRange(start, now.length - end);
    notebook.insertCells(
      start,
      fresh as Parameters<INotebookModel['sharedModel']['insertCells']>[1]
    );
  });
}

function keyOf(cell: ICell, cells: ICell[]): string {
  return cell.id ? String(cell.id) : `#${cells.indexOf(cell)}`;
}

function contentKey(
  cell: ICell,
  now: ICell[],
  left: ReadonlyMap<string, number>
): string {
  for (const [key, place] of left) {
    if (
      now[place].cell_type === cell.cell_type &&
      textOf(now[place].source) === textOf(cell.source)
    ) {
      return key;
    }
  }
  return '';
}

/** Return whether two cells look the same to a user. */
function isSame(one: ICell, other: ICell): boolean {
  return (
    (!one.id || !other.id || one.id === other.id) &&
    JSONExt.deepEqual(shown(one), shown(other))
  );
}

function shown(cell: ICell): JSONValue {
  // Trust is not part of what is shown.
  const metadata = { ...cell.metadata, trusted: null };
  const outputs = (cell.outputs ?? []) as unknown as Record<
    string,
    JSONValue
  >[];
  return {
    type: cell.cell_type,
    source: textOf(cell.source),
    metadata: metadata as JSONValue,
    attachments: (cell.attachments ?? {}) as JSONValue,
    count: (cell.execution_count ?? null) as JSONValue,
    outputs: outputs.map(output => joined(output))
  };
}

/** Return an output with texts that are stored as lists of lines joined. */
function joined(output: Record<string, JSONValue>): JSONValue {
  const { text, data, ...rest } = output;
  const texts = Object.entries((data ?? {}) as Record<string, JSONValue>);
  return {
    ...rest,
    text: textOf(text ?? ''),
    data: Object.fromEntries(texts.map(([type, one]) => [type, textOf(one)]))
  };
}

function textOf(value: JSONValue): JSONValue {
  return Array.isArray(value) && value.every(one => typeof one === 'string')
    ? value.join('')
    : value;
}
