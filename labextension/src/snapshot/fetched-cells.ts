// The cells of a notebook whose session comes back from another machine: those of the fetched snapshot replace them.

import { Notification } from '@jupyterlab/apputils';

import { asOurs } from '../shared/api';
import type { GpuCkptApi } from '../shared/api';
import { agrees } from '../shared/dialogs';
import { nameOfPath } from '../shared/format';
import { SHOW_UNDO } from '../shared/notices';
import type { KernelView } from '../shared/records';
import { trans } from '../shared/translation';
import type { ICell, IOpenCells } from './stored-cells';
import { cellChanges, cellChangesText } from './stored-cells';

export class FetchedCells {
  constructor(
    private readonly _api: GpuCkptApi,
    /** Opens a notebook; returns its cells, or null if they cannot be replaced. */
    private readonly _open: (path: string) => Promise<IOpenCells | null>
  ) {}

  /**
   * Put the cells of a fetched snapshot into the notebook of a suspended kernel, and offer to undo that. Ask first if the notebook
   * was edited after the kernel's own snapshot here. Return a function that takes the cells back.
   */
  async put(kernel: KernelView, snapshotId: string): Promise<() => void> {
    const name = nameOfPath(kernel.path);
    const cells = kernel.path.endsWith('.ipynb')
      ? await this._open(kernel.path)
      : null;
    const wanted = cells && (await this._stored(snapshotId));
    // Others who have the notebook open keep its cells.
    if (!cells || !wanted || cells.isShared) {
      return () => undefined;
    }
    const now = cells.read();
    const differences = cellChangesText(cellChanges(wanted, now));
    if (!differences || !(await this._mayReplace(kernel, now, differences))) {
      return () => undefined;
    }
    cells.put(wanted);
    const takeBack = () => {
      if (!cells.isShared) {
        cells.put(now);
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
        actions: [{ label: trans.__('Undo'), callback: takeBack }]
      }
    );
    return () => {
      Notification.dismiss(id);
      takeBack();
    };
  }

  private async _mayReplace(
    kernel: KernelView,
    now: ICell[],
    differences: string
  ): Promise<boolean> {
    const { path, snapshot_id: before } = kernel;
    const saved = before ? await this._stored(before) : null;
    // What a snapshot on this machine has can always be restored.
    return (
      (saved !== null && !cellChangesText(cellChanges(saved, now))) ||
      agrees(
        trans.__('Replace the cells of %1?', nameOfPath(path)),
        trans.__(
          'The notebook was edited here after its session was moved. With the cells of the other machine: %1',
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
