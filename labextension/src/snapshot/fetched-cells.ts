// The cells of a notebook whose session comes from another machine: those of the fetched snapshot replace them.

import { Notification } from '@jupyterlab/apputils';

import { asOurs } from '../shared/api';
import type { GpuCkptApi } from '../shared/api';
import { agrees } from '../shared/dialogs';
import { nameOfPath } from '../shared/format';
import { orTell, SHOW_UNDO } from '../shared/notices';
import { trans } from '../shared/translation';
import type { ICell, INotebookCells } from './stored-cells';
import { cellChanges, cellChangesText } from './stored-cells';

/** A notebook on this machine, and the snapshot with the cells that its user last saved with the session here. */
export interface IFormerNotebook {
  path: string;
  /** null: there is no such snapshot here. */
  snapshot_id: string | null;
}

export class FetchedCells {
  constructor(
    private readonly _api: GpuCkptApi,
    /** Returns the cells of a notebook, or null if they cannot be replaced. */
    private readonly _cells: (path: string) => Promise<INotebookCells | null>
  ) {}

  /**
   * Put the cells of a fetched snapshot into a notebook, and offer to undo that. Ask first if its former snapshot does not have its
   * present cells. Return a function that takes the cells back.
   */
  async put(
    former: IFormerNotebook,
    snapshotId: string
  ): Promise<() => Promise<void>> {
    const nothing = () => Promise.resolve();
    const name = nameOfPath(former.path);
    const cells = former.path.endsWith('.ipynb')
      ? await this._cells(former.path)
      : null;
    const wanted = cells && (await this._stored(snapshotId));
    // Others who have the notebook open keep its cells.
    if (!cells || !wanted || cells.isShared) {
      return nothing;
    }
    const now = cells.read();
    const differences = cellChangesText(cellChanges(wanted, now));
    if (!differences || !(await this._mayReplace(former, now, differences))) {
      return nothing;
    }
    const put = async (content: ICell[]) => {
      const isPut = await orTell(
        trans.__('Changing the cells of %1 failed', name),
        async () => {
          await cells.put(content);
          return true;
        }
      );
      return isPut !== null;
    };
    if (!(await put(wanted))) {
      return nothing;
    }
    const takeBack = async () => {
      if (!cells.isShared) {
        await put(now);
      }
    };
    const id = Notification.info(
      trans.__(
        '%1 has the cells of the other machine now: %2',
        name,
        differences
      ),
      {
        autoClose: SHOW_UNDO,
        actions: [{ label: trans.__('Undo'), callback: () => void takeBack() }]
      }
    );
    return async () => {
      Notification.dismiss(id);
      await takeBack();
    };
  }

  private async _mayReplace(
    former: IFormerNotebook,
    now: ICell[],
    differences: string
  ): Promise<boolean> {
    const { path, snapshot_id: before } = former;
    const saved = before ? await this._stored(before) : null;
    // What a snapshot on this machine has can always be restored.
    return (
      (saved !== null && !cellChangesText(cellChanges(saved, now))) ||
      agrees(
        trans.__('Replace the cells of %1?', nameOfPath(path)),
        before
          ? trans.__(
              'The notebook was edited here after its session was moved. With the cells of the other machine: %1',
              differences
            )
          : trans.__(
              'The notebook on this machine differs from that of the session. With the cells of the other machine: %1',
              differences
            ),
        trans.__('Replace'),
        { cancel: trans.__('Keep These Cells') }
      )
    );
  }

  private async _stored(snapshotId: string): Promise<ICell[] | null> {
    try {
      const { notebook } = await this._api.storedNotebook(snapshotId);
      return notebook?.cells ?? null;
    } catch (error) {
      asOurs(error); // the kernel is resumed all the same
      return null;
    }
  }
}
