// The command that fetches a snapshot from a remote and resumes it.

import type { CommandRegistry } from '@lumino/commands';

import type { GpuCkptApi } from '../shared/api';
import type { IOperation, IRemotePlace, KernelView } from '../shared/records';
import { remoteTitle } from './remote-texts';
import { mayFetch } from './remote-dialogs';
import { nameOfPath } from '../shared/format';
import { orTell } from '../shared/notices';
import type { Operations } from '../shared/operations';
import type { IKernelStates } from '../shared/tokens';
import { trans } from '../shared/translation';

export const fetchCommandId = 'gpuckpt:fetch-snapshot';

const ARGUMENTS = {
  type: 'object' as const,
  required: ['remote', 'sessionId', 'snapshotId'],
  properties: {
    remote: { type: 'string' as const, description: 'The name of the remote.' },
    sessionId: {
      type: 'string' as const,
      description: 'The id of the session in the remote.'
    },
    snapshotId: {
      type: 'string' as const,
      description: 'The id of the snapshot.'
    }
  }
};

export class FetchActions {
  constructor(
    private readonly _api: GpuCkptApi,
    private readonly _operations: Operations,
    private readonly _states: IKernelStates,
    /** Puts the cells of a snapshot into a notebook, if there is one; returns a function that takes them back. */
    private readonly _putCells: (
      former: Pick<KernelView, 'path' | 'snapshot_id'>,
      snapshotId: string
    ) => Promise<() => Promise<void>>,
    /** Returns whether a notebook has a kernel here. */
    private readonly _isBusy: (path: string) => boolean,
    private readonly _openNotebook: (path: string) => void
  ) {}

  /** Return whether this snapshot is being fetched. */
  isComing(snapshotId: string): boolean {
    return this._coming.has(snapshotId);
  }

  /** Ask the user, fetch a snapshot, resume it and show its notebook. Notifications show the progress and the result. */
  async run(place: IRemotePlace): Promise<void> {
    if (this.isComing(place.snapshotId)) {
      return;
    }
    this._coming.add(place.snapshotId);
    try {
      await this._run(place);
    } finally {
      this._coming.delete(place.snapshotId);
    }
  }

  private async _run(place: IRemotePlace): Promise<void> {
    const estimate = await orTell(
      trans.__('Reading “%1” failed', place.remote),
      () => this._api.fetchEstimate(place)
    );
    if (estimate === null) {
      return;
    }
    const { session, snapshot, obstacles } = estimate;
    const { path } = session;
    const kernelId = snapshot.kernel_id;
    const isOwn = this._suspended(kernelId, path) !== null;
    const target = isOwn ? 'own' : this._isBusy(path) ? 'copy' : 'notebook';
    const branch = isOwn ? '' : (this._states.get(kernelId)?.path ?? '');
    if (!(await mayFetch(place.remote, estimate, target, branch))) {
      return;
    }
    const { remote } = place;
    const name = remoteTitle({ remote, session, snapshot });
    const force = obstacles.length > 0;
    const take_over = session.leased_to !== '';
    const fetched = await this._operations.fetch(
      answers => this._api.fetch(place, { force, take_over, ...answers }),
      name
    );
    if (!fetched || force) {
      return;
    }
    const own = this._suspended(kernelId, path);
    if (own) {
      await this._goOnIn(own, place.snapshotId, nameOfPath(own.path));
      return;
    }
    // If the notebook has got a kernel meanwhile, the snapshot is resumed into a copy.
    const resumed = this._isBusy(path)
      ? await this._operations.resumeInto('', place.snapshotId, name)
      : await this._goOnIn({ path, snapshot_id: null }, place.snapshotId, name);
    if (resumed?.path) {
      this._openNotebook(resumed.path);
    }
  }

  /** Resume a fetched snapshot in a notebook here, which gets the snapshot's cells. */
  private async _goOnIn(
    former: Pick<KernelView, 'path' | 'snapshot_id'>,
    snapshotId: string,
    name: string
  ): Promise<IOperation | null> {
    // The cells come first: what the kernel says from then on belongs to them.
    const takeBack = await this._putCells(former, snapshotId);
    const resumed = await this._operations.resumeInto(
      former.path,
      snapshotId,
      name
    );
    if (!resumed) {
      await takeBack();
    }
    return resumed;
  }

  /**
   * Return the session's own kernel on this machine while it can be resumed from another snapshot. One that has gone on elsewhere, in a
   * copy of the notebook, is a branch.
   */
  private _suspended(kernelId: string, path: string): KernelView | null {
    const kernel = this._states.get(kernelId);
    const isAbsent = kernel?.state === 'suspended' || kernel?.state === 'lost';
    const isOwn = kernel?.path === path || !!kernel?.moved_to;
    return isAbsent && isOwn ? kernel : null;
  }

  /** The snapshots about which the user is being asked, or that are being fetched. */
  private readonly _coming = new Set<string>();
}

/** Add the command. */
export function addFetchCommand(
  commands: CommandRegistry,
  actions: FetchActions
): void {
  commands.addCommand(fetchCommandId, {
    label: trans.__('Fetch and Resume…'),
    caption: ({ snapshotId }) =>
      actions.isComing(String(snapshotId))
        ? trans.__('Please wait: a snapshot is being fetched.')
        : trans.__('Bring the snapshot to this machine and resume its kernel'),
    isEnabled: ({ snapshotId }) => !actions.isComing(String(snapshotId)),
    describedBy: { args: ARGUMENTS },
    execute: ({ remote, sessionId, snapshotId }) =>
      actions.run({
        remote: String(remote),
        sessionId: String(sessionId),
        snapshotId: String(snapshotId)
      })
  });
}
