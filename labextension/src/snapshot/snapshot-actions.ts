// The actions of the commands on a snapshot, with their confirmation dialogs.

import { Notification } from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import type { JSONObject } from '@lumino/coreutils';

import { asOurs } from '../shared/api';
import { copiesOfDeleted } from '../remote/remote-texts';
import { nameOfPath } from '../shared/format';
import type { KernelActions } from '../kernel/kernel-actions';
import { agrees, askText } from '../shared/dialogs';
import {
  conclude,
  during,
  orTell,
  SHOW_UNDO,
  tellWithDetails
} from '../shared/notices';
import {
  editNote,
  mayGoBack,
  restoresFiles,
  showComparison,
  showSnapshot
} from './snapshot-dialogs';
import type { Operations } from '../shared/operations';
import type { SnapshotView, IStoredNotebook } from '../shared/records';
import type { SnapshotAction } from './snapshot-commands';
import {
  snapshotTitle,
  templateName,
  undoText,
  verifiedText
} from './snapshot-texts';
import type { IOpenCells } from './stored-cells';
import { cellChanges, cellChangesText } from './stored-cells';
import type {
  IKernelStates,
  ISnapshots,
  IUserSettings
} from '../shared/tokens';
import type { Undo } from './undo';
import { trans } from '../shared/translation';

export class SnapshotActions {
  constructor(
    private readonly _snapshots: ISnapshots,
    private readonly _states: IKernelStates,
    private readonly _operations: Operations,
    private readonly _kernelActions: KernelActions,
    private readonly _undo: Undo,
    private readonly _settings: IUserSettings,
    /** Lets the launcher show new kernels. */
    private readonly _refreshLauncher: () => Promise<void>,
    /** Returns the cells of an open notebook; null if there are none that a snapshot can replace. */
    private readonly _cellsAt: (path: string) => IOpenCells | null
  ) {}

  /** Carry out an action on a snapshot, and notify the user of the result. */
  async run(action: SnapshotAction, snapshot: SnapshotView): Promise<void> {
    const headline = this._failed(action, snapshotTitle(snapshot));
    await orTell(headline, () => this._do(action, snapshot));
  }

  /** Let the user choose an exported snapshot, and import it into the store. */
  async import(): Promise<void> {
    const file = await chooseFile('.tar');
    if (file === null) {
      return;
    }
    await during(
      trans.__('Importing %1…', file.name),
      trans.__('Importing a snapshot failed'),
      async id => {
        await this._snapshots.import(file);
        conclude(id, trans.__('Imported %1', file.name), 'success');
      }
    );
  }

  private async _do(
    action: SnapshotAction,
    snapshot: SnapshotView
  ): Promise<void> {
    const { snapshot_id: id, kernel_id: kernelId } = snapshot;
    switch (action) {
      case 'goBack':
        return this._goBack(snapshot);
      case 'branch':
        await this._kernelActions.branchFrom(
          id,
          this._notebook(snapshot),
          snapshot.name
        );
        return;
      case 'template':
        return this._saveAsTemplate(snapshot);
      case 'compare': {
        const comparison = await this._snapshots.api.compare(id, kernelId);
        return showComparison(snapshot, comparison);
      }
      case 'details':
        return showSnapshot(snapshot);
      case 'rename':
        return this._rename(snapshot);
      case 'note':
        return this._annotate(snapshot);
      case 'pin':
        return this._snapshots.change(id, { pinned: !snapshot.pinned });
      case 'verify':
        return this._verify(snapshot);
      case 'export':
        return this._export(snapshot);
      case 'delete':
        return this._delete(snapshot);
    }
  }

  /** Ask for a name, and make a template whose recipe is the cells that had run; tell the user when its kernels can be started. */
  private async _saveAsTemplate(snapshot: SnapshotView): Promise<void> {
    const name = await askText(
      trans.__('Save as Template'),
      trans.__(
        'Its cells run again in a new kernel, of which the kernels of the template are copies. Name (small letters, digits and hyphens):'
      ),
      trans.__('Save'),
      templateName(this._notebook(snapshot))
    );
    if (!name) {
      return;
    }
    await during(
      trans.__('Running the cells of the template %1…', name),
      trans.__('The template %1 could not be made', name),
      async id => {
        const made = await this._snapshots.api.makeTemplate(
          name,
          snapshot.snapshot_id
        );
        await this._refreshLauncher();
        conclude(
          id,
          trans.__('Made the template %1: %2', name, made.title),
          'success'
        );
      }
    );
  }

  private async _goBack(snapshot: SnapshotView): Promise<void> {
    const { snapshot_id, kernel_id } = snapshot;
    const kernel = this._states.get(kernel_id);
    const path = kernel?.path || snapshot.name;
    const cells = this._cellsAt(path);
    if (cells?.isShared) {
      return this._restoreInCopy(snapshot);
    }
    const changes = await this._snapshots.api.changes(snapshot_id);
    const isPlain =
      changes.files.length === 0 && changes.obstacles.length === 0;
    const stored = cells ? await this._stored(snapshot_id) : null;
    const then = stored?.notebook?.cells ?? null;
    const differences =
      cells && then ? cellChangesText(cellChanges(then, cells.read())) : '';
    let wanted = differences ? then : null;
    let body: JSONObject = { snapshot_id };
    let withFiles = restoresFiles(snapshot);
    if (!isPlain || this._settings.choices.confirmRollBack) {
      const may = await mayGoBack(snapshot, changes, stored, differences);
      if (!may.goBack) {
        return;
      }
      wanted = may.withCells ? wanted : null;
      body = may.force ? { ...body, force: true } : body;
      withFiles = may.withFiles;
    }
    body = withFiles ? { ...body, files: 'restore' } : body;
    // The current cells are saved first too, in the snapshot of the current state.
    if (wanted && !(await this._kernelActions.saveNotebook(path))) {
      return;
    }
    // Somebody may have opened the notebook meanwhile.
    if (cells?.isShared) {
      return this._restoreInCopy(snapshot);
    }
    const name = trans.__(
      '%1 to %2',
      this._notebook(snapshot),
      snapshotTitle(snapshot)
    );
    const before = cells?.read() ?? [];
    // The state of a kernel without a process is in a snapshot already.
    const saved =
      kernel && ['suspended', 'lost'].includes(kernel.state)
        ? kernel.snapshot_id
        : null;
    const undo = this._undo.ofRestore(snapshot, saved, withFiles);
    const restored = kernel
      ? await this._operations.run('roll_back', kernel_id, name, {
          body,
          undo: async () => {
            await undo();
            if (wanted && !cells?.isShared) {
              cells?.put(before);
            }
          }
        })
      : await this._kernelActions.resumeInto(snapshot_id, snapshot.name, name);
    if (restored && wanted && !cells?.isShared) {
      cells?.put(wanted);
    }
  }

  /** Restore a snapshot of a notebook that others have open: they keep its cells and its kernel as they are. */
  private async _restoreInCopy(snapshot: SnapshotView): Promise<void> {
    const accepts = await agrees(
      trans.__('Restore %1 in a copy?', snapshotTitle(snapshot)),
      trans.__(
        'Others have this notebook open. It and its kernel stay as they are. The copy gets the snapshot’s cells and a kernel of its own.'
      ),
      trans.__('Restore')
    );
    if (accepts) {
      await this._kernelActions.branchFrom(
        snapshot.snapshot_id,
        this._notebook(snapshot),
        snapshot.name
      );
    }
  }

  /** Return the notebook in a snapshot; null if it cannot be read, which does not prevent the kernel's restore. */
  private async _stored(snapshotId: string): Promise<IStoredNotebook | null> {
    try {
      return await this._snapshots.api.storedNotebook(snapshotId);
    } catch (error) {
      asOurs(error);
      return null;
    }
  }

  private async _rename(snapshot: SnapshotView): Promise<void> {
    const title = await askText(
      trans.__('Rename the Snapshot'),
      trans.__('Name'),
      trans.__('Rename'),
      snapshot.title
    );
    if (title !== null) {
      await this._snapshots.change(snapshot.snapshot_id, { title });
    }
  }

  private async _annotate(snapshot: SnapshotView): Promise<void> {
    const note = await editNote(snapshot);
    if (note !== null) {
      await this._snapshots.change(snapshot.snapshot_id, { note });
    }
  }

  private async _verify(snapshot: SnapshotView): Promise<void> {
    const name = snapshotTitle(snapshot);
    const failed = this._failed('verify', name);
    await during(trans.__('Verifying %1…', name), failed, async id => {
      const found = await this._snapshots.api.verify(snapshot.snapshot_id);
      const text = verifiedText(name, found);
      if (found.ok) {
        conclude(id, text, 'success');
      } else {
        tellWithDetails(id, text, found.problems);
      }
    });
  }

  /** Let the browser download an archive of the snapshot, which is never in the page's memory as a whole. */
  private async _export(snapshot: SnapshotView): Promise<void> {
    const link = document.createElement('a');
    const name = `${PathExt.basename(snapshot.name, '.ipynb')} ${snapshotTitle(snapshot)}`;
    link.href = this._snapshots.api.exportUrl(snapshot.snapshot_id, name);
    link.download = '';
    document.body.appendChild(link);
    link.click();
    link.remove();
    Notification.info(
      trans.__(
        'Exporting %1: your browser downloads it. The file contains everything that is in the kernel’s memory.',
        snapshotTitle(snapshot)
      ),
      { autoClose: SHOW_UNDO }
    );
  }

  private async _delete(snapshot: SnapshotView): Promise<void> {
    const name = snapshotTitle(snapshot);
    const copies = copiesOfDeleted(snapshot);
    const { store, api } = this._snapshots;
    const { undo_delete_seconds } = store ?? (await api.store());
    const undo = undoText(undo_delete_seconds);
    const accepts =
      !this._settings.choices.confirmDelete ||
      (await agrees(
        trans.__('Delete the snapshot %1?', name),
        [undo, copies].join(' ').trim(),
        trans.__('Delete'),
        { warns: true }
      ));
    if (!accepts) {
      return;
    }
    await this._snapshots.delete(snapshot.snapshot_id);
    const done = trans.__('Deleted the snapshot %1.', name);
    const undelete = () =>
      orTell(trans.__('Could not restore the snapshot'), () =>
        this._snapshots.undelete(snapshot.snapshot_id)
      );
    const canUndo = undo_delete_seconds > 0;
    Notification.emit([done, undo, copies].filter(Boolean).join(' '), 'info', {
      autoClose: canUndo ? undo_delete_seconds * 1000 : SHOW_UNDO,
      actions: canUndo
        ? [{ label: trans.__('Undo'), callback: () => void undelete() }]
        : []
    });
  }

  /** Return the name of a snapshot's notebook, which may have been renamed since. */
  private _notebook({ kernel_id, name }: SnapshotView): string {
    return nameOfPath(this._states.get(kernel_id)?.path || name);
  }

  private _failed(action: SnapshotAction, name: string): string {
    const texts: Record<SnapshotAction, string> = {
      goBack: trans.__('Restoring %1 failed', name),
      branch: trans.__('Branching %1 failed', name),
      template: trans.__('Making a template of %1 failed', name),
      compare: trans.__('Comparing %1 failed', name),
      details: trans.__('Showing %1 failed', name),
      rename: trans.__('Renaming %1 failed', name),
      note: trans.__('Changing the note of %1 failed', name),
      pin: trans.__('Pinning %1 failed', name),
      verify: trans.__('Verifying %1 failed', name),
      export: trans.__('Exporting %1 failed', name),
      delete: trans.__('Deleting %1 failed', name)
    };
    return texts[action];
  }
}

function chooseFile(accept: string): Promise<File | null> {
  const input = document.createElement('input');
  input.type = 'file';
  input.accept = accept;
  return new Promise(resolve => {
    input.onchange = () => resolve(input.files?.[0] ?? null);
    input.oncancel = () => resolve(null);
    input.click();
  });
}
