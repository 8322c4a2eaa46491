// The actions of the commands on a kernel, with their confirmation dialogs.

import { PathExt } from '@jupyterlab/coreutils';
import type { JSONObject } from '@lumino/coreutils';

import type { GpuCkptApi } from '../shared/api';
import type { Action } from './commands';
import type { IRemotes } from '../remote/remotes';
import { whereToMove } from '../remote/remote-dialogs';
import { agrees, askText } from '../shared/dialogs';
import { orTell } from '../shared/notices';
import type { Operations } from '../shared/operations';
import type { IOperation, IRemotePlace } from '../shared/records';
import type { ITarget } from './targets';
import type { IKernelStates, IUserSettings } from '../shared/tokens';
import { trans } from '../shared/translation';

export class KernelActions {
  constructor(
    private readonly _api: GpuCkptApi,
    private readonly _states: IKernelStates,
    private readonly _remotes: IRemotes,
    private readonly _operations: Operations,
    private readonly _settings: IUserSettings,
    private readonly _showHistory: (kernelId: string | null) => void,
    private readonly _openNotebook: (path: string) => void,
    /** Saves the notebook at a path if it is open and has changes; returns false if that failed. */
    readonly saveNotebook: (path: string) => Promise<boolean>,
    /** Asks for a new remote; returns its name, or null if none was added. */
    private readonly _addRemote: () => Promise<string | null>,
    /** Fetches a snapshot from a remote and resumes it, if the user agrees. */
    private readonly _fetch: (place: IRemotePlace) => Promise<void>
  ) {}

  /** Carry out an action. Return the operation if it succeeded; null if it failed, of which the user is notified, or was not confirmed. */
  async run(
    action: Action,
    { kernelId, name }: ITarget
  ): Promise<IOperation | null> {
    if (action === 'history') {
      this._showHistory(kernelId);
      return null;
    }
    if (kernelId === null) {
      return null;
    }
    switch (action) {
      case 'save':
        return this._settings.choices.askForTitle
          ? this._saveAs(kernelId, name)
          : this._freeze('save', kernelId, name);
      case 'saveAs':
        return this._saveAs(kernelId, name);
      case 'suspend':
        return this._settings.choices.confirmSuspend &&
          !(await this._maySuspend(name))
          ? null
          : this._freeze('suspend', kernelId, name);
      case 'branch':
        return this._branch(kernelId, name);
      case 'move':
        return this._move(kernelId, name);
      case 'resume':
        return this._resume(kernelId, name);
      default:
        return this._operations.run(action, kernelId, name);
    }
  }

  /** Start a second kernel from a snapshot and show its notebook, a copy of the notebook at `path`, which is saved first. */
  async branchFrom(
    snapshotId: string,
    name: string,
    path: string
  ): Promise<IOperation | null> {
    if (!(await this.saveNotebook(path))) {
      return null;
    }
    const operation = await this._operations.branch(snapshotId, name);
    if (operation?.path) {
      this._openNotebook(operation.path);
    }
    return operation;
  }

  /** Resume a snapshot of a kernel that has ended into its own notebook, and show it. */
  async resumeInto(
    snapshotId: string,
    path: string,
    name: string
  ): Promise<IOperation | null> {
    // A console's path has no extension and is no file; the kernel gets a notebook.
    const notebook = PathExt.extname(path) ? path : '';
    const resumed = await this._operations.resumeInto(
      notebook,
      snapshotId,
      name
    );
    if (resumed?.path) {
      this._openNotebook(resumed.path);
    }
    return resumed;
  }

  /** Save or suspend a kernel. Its notebook is saved before, because the snapshot contains the notebook's file. */
  private _freeze(
    kind: 'save' | 'suspend',
    kernelId: string,
    name: string,
    body?: JSONObject
  ): Promise<IOperation | null> {
    const path = this._states.get(kernelId)?.path ?? '';
    const before = () => this.saveNotebook(path);
    return this._operations.run(kind, kernelId, name, { before, body });
  }

  private async _saveAs(
    kernelId: string,
    name: string
  ): Promise<IOperation | null> {
    const title = await askText(
      trans.__('Save a Snapshot of %1', name),
      trans.__('Name (named snapshots are pinned)'),
      trans.__('Save')
    );
    return title !== null
      ? this._freeze('save', kernelId, name, { name: title })
      : null;
  }

  /** Resume a kernel; of one that was moved, what another machine has saved since is offered instead. */
  private async _resume(
    kernelId: string,
    name: string
  ): Promise<IOperation | null> {
    const kernel = this._states.get(kernelId);
    const newer = kernel && (await this._remotes.find(kernel))?.newer;
    if (newer) {
      await this._fetch(newer);
      return null;
    }
    return this._operations.run('resume', kernelId, name);
  }

  /** The notebook is written first: its file may lie in a folder that the other machine sees, too. */
  private async _move(
    kernelId: string,
    name: string
  ): Promise<IOperation | null> {
    const remotes = await this._choices(name);
    const remote =
      remotes && remotes.length > 0 ? await whereToMove(name, remotes) : null;
    const path = this._states.get(kernelId)?.path ?? '';
    return remote !== null && (await this.saveNotebook(path))
      ? this._operations.run('move', kernelId, name, { body: { remote } })
      : null;
  }

  /** Return the names of the remotes, of which the user adds one if there is none; null if they are not known. */
  private async _choices(name: string): Promise<string[] | null> {
    const known = await orTell(trans.__('Moving %1 failed', name), () =>
      this._api.remotes()
    );
    if (known?.length !== 0) {
      return known && known.map(remote => remote.name);
    }
    const added = await this._addRemote();
    return added === null ? null : [added];
  }

  private _maySuspend(name: string): Promise<boolean> {
    return agrees(
      trans.__('Suspend %1?', name),
      trans.__(
        'The kernel is saved to disk and its memory and GPU are freed. Running a cell resumes it.'
      ),
      trans.__('Suspend')
    );
  }

  /** Branch a kernel from its latest snapshot. A kernel that runs is saved first. */
  private async _branch(
    kernelId: string,
    name: string
  ): Promise<IOperation | null> {
    const kernel = this._states.get(kernelId);
    const asleep = kernel?.state === 'suspended' || kernel?.state === 'lost';
    const snapshotId = asleep
      ? kernel.snapshot_id
      : (await this._freeze('save', kernelId, name))?.result?.snapshot_id;
    return snapshotId
      ? this.branchFrom(snapshotId, name, kernel?.path ?? '')
      : null;
  }
}
