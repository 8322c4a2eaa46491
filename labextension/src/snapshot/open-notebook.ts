// The command that opens a session's notebook. If its file was deleted, the notebook is brought back from a snapshot of its kernel.

import { PathExt } from '@jupyterlab/coreutils';
import type { Contents, ServerConnection } from '@jupyterlab/services';
import type { CommandRegistry } from '@lumino/commands';

import type { GpuCkptApi } from '../shared/api';
import { GpuCkptError } from '../shared/api';
import { agrees } from '../shared/dialogs';
import { formatMoment, nameOfPath } from '../shared/format';
import { orTell } from '../shared/notices';
import type { NotebookContent, SnapshotView } from '../shared/records';
import type { IKernelStates } from '../shared/tokens';
import { trans } from '../shared/translation';

export const openNotebookId = 'gpuckpt:open-notebook';

const EMPTY = { cells: [], metadata: {}, nbformat: 4, nbformat_minor: 5 };

/** Add the command. `isOpen`: returns whether a notebook is open in this page, where it can be saved again. */
export function addOpenCommand(
  commands: CommandRegistry,
  notebooks: DeletedNotebooks,
  isOpen: (path: string) => boolean
): void {
  commands.addCommand(openNotebookId, {
    label: trans.__('Open the Notebook of a Session'),
    describedBy: {
      args: {
        type: 'object',
        required: ['path'],
        properties: {
          path: { type: 'string', description: 'The path of the notebook.' }
        }
      }
    },
    execute: async ({ path }) => {
      const wanted = String(path);
      if (isOpen(wanted) || (await notebooks.isThere(wanted))) {
        return commands.execute('docmanager:open', { path: wanted });
      }
      const isBack = await orTell(
        trans.__('Opening %1 failed', nameOfPath(wanted)),
        () => notebooks.bringBack(wanted)
      );
      return isBack
        ? commands.execute('docmanager:open', { path: wanted })
        : undefined;
    }
  });
}

/** The notebooks whose files were deleted while their kernels have snapshots. */
export class DeletedNotebooks {
  constructor(
    private readonly _contents: Contents.IManager,
    private readonly _states: IKernelStates,
    private readonly _api: GpuCkptApi
  ) {}

  /** Return whether there is a file or a folder at a path. Other troubles than its absence are reported when it is opened. */
  async isThere(path: string): Promise<boolean> {
    try {
      await this._contents.get(path, { content: false });
      return true;
    } catch (error) {
      const { response } = error as Partial<ServerConnection.ResponseError>;
      return response?.status !== 404;
    }
  }

  /** Write a notebook at its old path, as it is in the snapshot of its kernel, if the user agrees; return whether it is there. */
  async bringBack(path: string): Promise<boolean> {
    const snapshot = await this._snapshotOf(path);
    if (snapshot === undefined) {
      throw new GpuCkptError({
        message: trans.__('The notebook was deleted.'),
        code: 'not_found',
        hint: trans.__('There is no snapshot of it.')
      });
    }
    const { notebook } = await this._api.storedNotebook(snapshot.snapshot_id);
    const accepts = await agrees(
      trans.__('Bring back %1?', nameOfPath(path)),
      notebook
        ? trans.__(
            'The notebook was deleted. Its cells and outputs are in the snapshot of %1. It is written again as %2 and opened with its kernel.',
            formatMoment(snapshot.created),
            path
          )
        : trans.__(
            'The notebook was deleted, and its cells are not in the snapshot of %1. An empty notebook is written as %2 and opened with its kernel.',
            formatMoment(snapshot.created),
            path
          ),
      trans.__('Bring Back the Notebook')
    );
    return accepts && this._write(path, notebook ?? EMPTY);
  }

  /** Return the snapshot from which the notebook's kernel would be resumed, else the newest one of the notebook. */
  private async _snapshotOf(path: string): Promise<SnapshotView | undefined> {
    const kernel = this._states.all().find(one => one.path === path);
    const list = await this._api.snapshots();
    return (
      list.find(one => one.snapshot_id === kernel?.snapshot_id) ??
      list.find(one => one.name === path)
    );
  }

  /** Write a notebook unless there is a file by now. */
  private async _write(
    path: string,
    content: NotebookContent | typeof EMPTY
  ): Promise<boolean> {
    try {
      await this._makeFolder(PathExt.dirname(path));
      if (!(await this.isThere(path))) {
        const model = { type: 'notebook', format: 'json', content } as const;
        await this._contents.save(path, model);
      }
      return true;
    } catch (error) {
      throw new GpuCkptError({
        message: (error as Error).message,
        code: 'not_written',
        hint: trans.__('The snapshot still has it.')
      });
    }
  }

  private async _makeFolder(path: string): Promise<void> {
    if (path && !(await this.isThere(path))) {
      await this._makeFolder(PathExt.dirname(path));
      await this._contents.save(path, { type: 'directory' });
    }
  }
}
