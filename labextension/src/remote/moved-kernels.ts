// Where the sessions of moved kernels are now, as their remotes say while a user looks at them.

import { Signal } from '@lumino/signaling';

import type { GpuCkptApi } from '../shared/api';
import { asOurs } from '../shared/api';
import type { IRemotePlace, RemoteListing } from '../shared/records';
import type { IWhereabouts } from '../shared/texts';
import type { IKernelStates } from '../shared/tokens';

/** The age in milliseconds up to which an answer is used again. */
const FRESH = 15000;

export interface IMovedTo extends IWhereabouts {
  /** Where its newest snapshot is, if that is not on this machine. */
  newer: IRemotePlace | null;
}

/** The moved kernels of this machine whose remotes were asked. */
export class MovedKernels {
  constructor(
    private readonly _api: GpuCkptApi,
    private readonly _states: IKernelStates
  ) {}

  /** A signal with the id of a kernel about which a remote has answered. */
  readonly changed = new Signal<this, string>(this);

  /** Return what is known of a moved kernel; null if nothing is. */
  get(kernelId: string): IMovedTo | null {
    if (!this._states.get(kernelId)?.moved_to) {
      // What was known says nothing about its next move.
      this._known.delete(kernelId);
      this._asked.delete(kernelId);
    }
    return this._known.get(kernelId) ?? null;
  }

  /** Ask the remote of a moved kernel, unless its last answer is recent. */
  async look(kernelId: string): Promise<void> {
    if (performance.now() - (this._asked.get(kernelId) ?? -Infinity) >= FRESH) {
      await this.ask(kernelId);
    }
  }

  /** Ask the remote of a moved kernel; return what is known then. */
  async ask(kernelId: string): Promise<IMovedTo | null> {
    const remote = this._states.get(kernelId)?.moved_to;
    if (remote) {
      this._asked.set(kernelId, performance.now());
      try {
        const listing = await this._api.remoteSessions(remote);
        this._known.set(kernelId, whereIs(kernelId, remote, listing));
      } catch (error) {
        asOurs(error); // a resume asks the remote, too
        this._known.delete(kernelId);
      }
      this.changed.emit(kernelId);
    }
    return this.get(kernelId);
  }

  private readonly _known = new Map<string, IMovedTo | null>();
  private readonly _asked = new Map<string, number>();
}

/** Return where the session of a moved kernel is, by the list of its remote; null if that does not have it. */
export function whereIs(
  kernelId: string,
  remote: string,
  { sessions }: Pick<RemoteListing, 'sessions'>
): IMovedTo | null {
  const session = sessions.find(one => one.session_id === kernelId);
  if (session === undefined) {
    return null;
  }
  const [newest] = session.snapshots;
  const { session_id: sessionId, host_name, leased_to, runs_here } = session;
  const isNewer = newest !== undefined && !newest.here;
  return {
    runsOn: runs_here ? '' : leased_to,
    savedOn: isNewer ? host_name : '',
    newer: isNewer
      ? { remote, sessionId, snapshotId: newest.snapshot_id }
      : null
  };
}
