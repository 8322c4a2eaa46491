// The snapshots in remotes, requested when a user looks at them.

import { Signal } from '@lumino/signaling';

import type { GpuCkptApi } from '../shared/api';
import { asOurs, GpuCkptError } from '../shared/api';
import type {
  RemoteListing,
  ListedSession,
  ListedSnapshot,
  RemoteState
} from '../shared/records';

/** The age in milliseconds up to which an answer is used again: a request to a remote takes long and may cost money. */
const FRESH = 300000;

/** The same while a kernel of this machine is moved: its user comes back with news of it. */
const FRESH_AFTER_MOVE = 60000;

/** A remote with its list, or with the error of the last request; both are null during the first request. */
export interface IKnownRemote {
  name: string;
  listing: RemoteListing | null;
  problem: GpuCkptError | null;
}

/** A remote session that can be fetched. */
export interface IRemoteChoice {
  remote: string;
  session: ListedSession;
  /** The newest snapshot of the session. */
  snapshot: ListedSnapshot;
}

export class Remotes {
  constructor(
    private readonly _api: GpuCkptApi,
    /** Returns whether a kernel of this machine is moved. */
    private readonly _hasMoved: () => boolean = () => false
  ) {}

  /** A signal for every new answer about a remote. */
  readonly changed = new Signal<this, void>(this);

  /** The known remotes; empty if none is configured, and before the first `look`. */
  get known(): readonly IKnownRemote[] {
    return this._known;
  }

  /** Whether a request is in flight. */
  get isAsking(): boolean {
    return this._asking !== null;
  }

  /** Request the remotes and their snapshots, unless the last answer is recent. */
  async look(): Promise<void> {
    const fresh = this._hasMoved() ? FRESH_AFTER_MOVE : FRESH;
    if (performance.now() - this._lookedAt >= fresh) {
      await this.refresh();
    }
  }

  /** Request the list of remotes, and the snapshots in each of them. */
  refresh(): Promise<void> {
    this._asking ??= this._ask().finally(() => {
      this._asking = null;
      this.changed.emit();
    });
    this.changed.emit();
    return this._asking;
  }

  private async _ask(): Promise<void> {
    let remotes: RemoteState[];
    try {
      remotes = await this._api.remotes();
    } catch (error) {
      asOurs(error); // the list of snapshots reports it
      return;
    }
    this._lookedAt = performance.now();
    const before = this._known;
    this._known = remotes.map(
      ({ name }) =>
        before.find(known => known.name === name) ?? {
          name,
          listing: null,
          problem: null
        }
    );
    this.changed.emit();
    await Promise.all(remotes.map(remote => this._askOne(remote)));
  }

  private async _askOne({ name, refusals }: RemoteState): Promise<void> {
    const learnt: IKnownRemote = { name, listing: null, problem: null };
    try {
      if (refusals.length > 0) {
        const message = refusals.join(' ');
        throw new GpuCkptError({ message, code: 'remote_refused' });
      }
      learnt.listing = await this._api.remoteSessions(name);
    } catch (error) {
      learnt.problem = asOurs(error);
    }
    this._known = this._known.map(known =>
      known.name === name ? learnt : known
    );
    this.changed.emit();
  }

  private _known: readonly IKnownRemote[] = [];
  private _asking: Promise<void> | null = null;
  private _lookedAt = -Infinity;
}

/** Return the sessions that other machines run now and whose newest snapshot is on this machine, so that they are not offered. */
export function runElsewhere(
  known: readonly IKnownRemote[],
  here: ReadonlySet<string>
): ListedSession[] {
  const found = known.flatMap(({ listing }) => listing?.sessions ?? []);
  return found.filter(
    ({ leased_to, runs_here, snapshots: [newest] }) =>
      leased_to &&
      !runs_here &&
      newest &&
      (newest.here || here.has(newest.snapshot_id))
  );
}

/**
 * Return the remote sessions whose newest snapshot is not on this machine.
 *
 * Sessions that their users have moved for another machine come first.
 *
 * @param here - the ids of the snapshots on this machine.
 * @param paths - notebooks whose sessions come first, in this order; the others follow, the newest first.
 */
export function elsewhere(
  known: readonly IKnownRemote[],
  here: ReadonlySet<string>,
  paths: readonly string[]
): IRemoteChoice[] {
  const found = new Map<string, IRemoteChoice>();
  for (const { name, listing } of known) {
    for (const session of listing?.sessions ?? []) {
      // Their order is the server's: clocks of machines differ.
      const [snapshot] = session.snapshots;
      // A snapshot in two remotes is offered once.
      if (
        snapshot &&
        !snapshot.here &&
        !here.has(snapshot.snapshot_id) &&
        !found.has(snapshot.snapshot_id)
      ) {
        found.set(snapshot.snapshot_id, { remote: name, session, snapshot });
      }
    }
  }
  const rank = ({ session }: IRemoteChoice) => {
    const index = paths.indexOf(session.path);
    return index < 0 ? paths.length : index;
  };
  const movedAt = ({ session }: IRemoteChoice) => session.moved_at;
  return [...found.values()].sort(
    (one, other) =>
      movedAt(other) - movedAt(one) ||
      rank(one) - rank(other) ||
      other.snapshot.created - one.snapshot.created
  );
}
