// Notifications that offer to undo a shutdown, a restart or a restored snapshot.

import { Notification } from '@jupyterlab/apputils';
import type { Event } from '@jupyterlab/services';

import type { GpuCkptApi } from '../shared/api';
import { asOurs } from '../shared/api';
import { nameOfPath } from '../shared/format';
import { orTell, SHOW_UNDO, tellProblem } from '../shared/notices';
import type { Operations } from '../shared/operations';
import type { KernelView, SnapshotView } from '../shared/records';
import { isKernelAction } from '../shared/server-events';
import { snapshotTitle, undoText } from './snapshot-texts';
import { trans } from '../shared/translation';

export class Undo {
  constructor(
    private readonly _api: GpuCkptApi,
    private readonly _operations: Operations,
    /** Connects the notebook at a path to a kernel again; opens it if it is not open. */
    private readonly _reconnect: (path: string, kernelId: string) => void
  ) {}

  /** Offer to undo the shutdowns and restarts that the user of this page requests. */
  follow(stream: Event.Stream): void {
    stream.connect((_, event) => {
      if (
        isKernelAction(event) &&
        event.status === 'success' &&
        event.kernel_id &&
        document.hasFocus()
      ) {
        void this._onAction(event.action, event.kernel_id);
      }
    });
  }

  /**
   * Return the function that undoes a restore. `saved`: the snapshot of the state before it; null: the restore itself took that.
   * `withFiles`: files were restored, too.
   */
  ofRestore(
    snapshot: SnapshotView,
    saved: string | null,
    withFiles: boolean
  ): () => Promise<void> {
    return async () => {
      const { kernel_id: kernelId } = snapshot;
      const before = await this._newest(kernelId, one =>
        saved ? one.snapshot_id === saved : one.cause === 'rollback'
      );
      if (before) {
        await this._restore(before, kernelId, withFiles);
      }
    };
  }

  private async _onAction(action: string, kernelId: string): Promise<void> {
    try {
      if (action === 'shutdown') {
        await this._offerShutdown(kernelId);
      } else if (action === 'restart') {
        await this._offerRestart(kernelId);
      }
    } catch (error) {
      asOurs(error); // nothing is offered then
    }
  }

  private async _offerShutdown(kernelId: string): Promise<void> {
    const kept = (await this._api.shutDowns()).find(
      ({ kernel_id }) => kernel_id === kernelId
    );
    if (kept === undefined) {
      return;
    }
    const name = nameOfPath(kept.path || kept.kernel_name);
    const left = Math.floor(kept.ends_at - Date.now() / 1000);
    const done = trans.__('Shut down the kernel of %1', name);
    this._offer(
      // The server's clock may differ from the page's.
      left > 0 ? `${done}. ${undoText(left)}` : done,
      left > 0 ? left * 1000 : SHOW_UNDO,
      async () => {
        await this._api.undoShutdown(kernelId);
        this._reconnect(kept.path, kernelId);
      }
    );
  }

  private async _offerRestart(kernelId: string): Promise<void> {
    const kernel = await this._api.kernel(kernelId);
    const saved = await this._before(kernel);
    const name = nameOfPath(saved?.name || kernel.path || kernel.kernel_name);
    if (kernel.former_kept || saved) {
      this._offer(trans.__('Restarted the kernel of %1', name), SHOW_UNDO, () =>
        this._undoRestart(kernelId)
      );
    } else if (kernel.restart_lost !== null) {
      tellProblem(trans.__('The restart of %1 cannot be undone', name), [
        kernel.restart_lost
      ]);
    }
  }

  /** Let the process from before a restart run on; once it is saved, restore its snapshot. */
  private async _undoRestart(kernelId: string): Promise<void> {
    const kernel = await this._api.kernel(kernelId);
    let saved = await this._before(kernel);
    if (!saved) {
      try {
        await this._api.undoRestart(kernelId);
      } catch (error) {
        // It may have been saved just now.
        saved = await this._before(await this._api.kernel(kernelId));
        if (!saved) {
          throw error;
        }
      }
    }
    if (saved) {
      await this._restore(saved, kernelId);
    } else {
      Notification.success(
        trans.__(
          'Restored %1 to its state before the restart',
          nameOfPath(kernel.path || kernel.kernel_name)
        ),
        { autoClose: SHOW_UNDO }
      );
    }
  }

  private async _before(kernel: KernelView): Promise<SnapshotView | undefined> {
    const { before_restart, kernel_id } = kernel;
    return before_restart === null
      ? undefined
      : this._newest(
          kernel_id,
          ({ snapshot_id }) => snapshot_id === before_restart
        );
  }

  private async _newest(
    kernelId: string,
    isIt: (snapshot: SnapshotView) => boolean
  ): Promise<SnapshotView | undefined> {
    const list = await this._api.snapshots();
    return list.find(one => one.kernel_id === kernelId && isIt(one));
  }

  private async _restore(
    to: SnapshotView,
    kernelId: string,
    withFiles = false
  ): Promise<void> {
    const { snapshot_id, name } = to;
    await this._operations.run(
      'roll_back',
      kernelId,
      trans.__('%1 to %2', nameOfPath(name), snapshotTitle(to)),
      {
        body: withFiles ? { snapshot_id, files: 'restore' } : { snapshot_id }
      }
    );
  }

  private _offer(
    message: string,
    autoClose: number,
    undo: () => Promise<void>
  ): void {
    const callback = () => orTell(trans.__('Undo failed'), undo);
    Notification.info(message, {
      autoClose,
      actions: [{ label: trans.__('Undo'), callback: () => void callback() }]
    });
  }
}
