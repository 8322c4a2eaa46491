// The snapshots in remotes, requested when a user looks at them or at a moved kernel.

import { Token } from '@lumino/coreutils';
import { Signal } from '@lumino/signaling';

import type { GpuCkptApi } from '../shared/api';
import { asOurs, GpuCkptError } from '../shared/api';
import type {
  IRemotePlace,
  KernelView,
  RemoteListing,
  ListedSession,
  ListedSnapshot,
  RemoteState
} from '../shared/records';
import type { IWhereabouts } from '../shared/texts';
import { isAtRemote } from '../shared/texts';
import type { IKernelStates } from '../shared/tokens';

/** The age in milliseconds up to which an answer is used again: a request to a remote takes long and may cost money. */
const FRESH = 300000;

/** The same while a kernel of this machine is moved: its user comes back with news of it. */
const FRESH_AFTER_MOVE = 60000;

/** The same for a moved kernel that a user looks at. */
const FRESH_FOR_MOVED = 15000;

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

/** Where the session of a moved kernel is now. */
export interface IMovedTo extends IWhereabouts {
  /** Where its newest snapshot is, if that is not on this machine. */
  newer: IRemotePlace | null;
}

/** The last answer of a remote, and when it was asked, in milliseconds. */
interface IAnswer extends IKnownRemote {
  askedAt: number;
}

export type IRemotes = Pick<Remotes, keyof Remotes>;

export const IRemotes = new Token<IRemotes>(
  'jupyter-gpuckpt:IRemotes',
  'The snapshots in the remotes, as these said when they were asked last.'
);

/** The last answers of the remotes. The panel and the notices above notebooks read the same ones, so that they say the same. */
export class Remotes {
  constructor(
    private readonly _api: GpuCkptApi,
    private readonly _states: IKernelStates
  ) {
    this._followMoves();
    _states.changed.connect(() => this._followMoves());
  }

  /** A signal for every new answer about a remote. */
  readonly changed = new Signal<this, void>(this);

  /** The known remotes; empty if none is configured, and before the first `look`. */
  get known(): readonly IKnownRemote[] {
    return this._configured.map(
      ({ name }) =>
        this._answers.get(name) ?? { name, listing: null, problem: null }
    );
  }

  /** Whether the list of remotes, or one of them, is being requested by `refresh`. */
  get isAsking(): boolean {
    return this._asking !== null;
  }

  /** Request the remotes and their snapshots, unless the last answer is recent. */
  async look(): Promise<void> {
    const fresh = this._movedAt.size > 0 ? FRESH_AFTER_MOVE : FRESH;
    if (performance.now() - this._lookedAt >= fresh) {
      await this.refresh();
    }
  }

  /** Request the list of remotes, and the snapshots in each of them. */
  refresh(): Promise<void> {
    this._asking ??= this._refresh().finally(() => {
      this._asking = null;
      this.changed.emit();
    });
    this.changed.emit();
    return this._asking;
  }

  /** Ask the remote of a moved kernel, unless its last answer is recent. */
  async lookFor(kernel: KernelView): Promise<void> {
    const answer = this._answerAbout(kernel);
    const age = performance.now() - (answer?.askedAt ?? -Infinity);
    if (age >= FRESH_FOR_MOVED) {
      await this.find(kernel);
    }
  }

  /** Ask the remote of a moved kernel where its session is now; null if the kernel is not moved or the remote does not know. */
  async find(kernel: KernelView): Promise<IMovedTo | null> {
    if (isAtRemote(kernel)) {
      await this._ask(kernel.moved_to!);
    }
    return this.whereIs(kernel);
  }

  /** Return where the session of a moved kernel is, as its remote said last; null if nothing is known since it was moved. */
  whereIs(kernel: KernelView): IMovedTo | null {
    const answer = this._answerAbout(kernel);
    const session = answer?.listing?.sessions.find(
      ({ session_id }) => session_id === kernel.kernel_id
    );
    if (!answer || !session) {
      return null;
    }
    const [newest] = session.snapshots;
    const { session_id: sessionId, host_name, leased_to, runs_here } = session;
    const isNewer = newest !== undefined && !newest.here;
    return {
      runsOn: runs_here ? '' : leased_to,
      savedOn: isNewer ? host_name : '',
      newer: isNewer
        ? { remote: answer.name, sessionId, snapshotId: newest.snapshot_id }
        : null
    };
  }

  /** Return the last answer of the remote of a moved kernel, if it was asked after the move. */
  private _answerAbout(kernel: KernelView): IAnswer | null {
    const movedAt = this._movedAt.get(kernel.kernel_id);
    const answer = isAtRemote(kernel)
      ? this._answers.get(kernel.moved_to!)
      : undefined;
    return answer && movedAt !== undefined && answer.askedAt >= movedAt
      ? answer
      : null;
  }

  /** Note which kernels are moved. Answers from before a move say where the session was then: remotes that a user has looked at are asked again. */
  private _followMoves(): void {
    const before = this._movedAt;
    this._movedAt = new Map();
    for (const { kernel_id } of this._states.all().filter(isAtRemote)) {
      const movedAt = before.get(kernel_id) ?? performance.now();
      this._movedAt.set(kernel_id, movedAt);
    }
    const ids = (moved: Map<string, number>) => [...moved.keys()].join();
    if (ids(before) !== ids(this._movedAt)) {
      this._inFlight.clear();
      if (this._configured.length > 0) {
        void this.refresh();
      }
    }
  }

  private async _refresh(): Promise<void> {
    try {
      this._configured = await this._api.remotes();
    } catch (error) {
      asOurs(error); // the list of snapshots reports it
      return;
    }
    this._lookedAt = performance.now();
    this.changed.emit();
    await Promise.all(this._configured.map(({ name }) => this._ask(name)));
  }

  /** Request the snapshots in a remote; several callers at once get the same answer. */
  private _ask(name: string): Promise<void> {
    let asked = this._inFlight.get(name);
    if (!asked) {
      asked = this._answerOf(name).then(answer => {
        if (this._inFlight.get(name) === asked) {
          this._inFlight.delete(name);
        }
        const known = this._answers.get(name);
        if (!known || known.askedAt <= answer.askedAt) {
          this._answers.set(name, answer);
          this.changed.emit();
        }
      });
      this._inFlight.set(name, asked);
    }
    return asked;
  }

  private async _answerOf(name: string): Promise<IAnswer> {
    const askedAt = performance.now();
    const answer: IAnswer = { name, listing: null, problem: null, askedAt };
    const found = this._configured.find(remote => remote.name === name);
    try {
      if (found && found.refusals.length > 0) {
        const message = found.refusals.join(' ');
        throw new GpuCkptError({ message, code: 'remote_refused' });
      }
      answer.listing = await this._api.remoteSessions(name);
    } catch (error) {
      answer.problem = asOurs(error);
    }
    return answer;
  }

  private _configured: RemoteState[] = [];
  private readonly _answers = new Map<string, IAnswer>();
  private readonly _inFlight = new Map<string, Promise<void>>();
  /** When each moved kernel was first seen to be moved, in milliseconds. */
  private _movedAt = new Map<string, number>();
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
