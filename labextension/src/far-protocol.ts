// The records about remotes and the snapshots in them, with the fields of the REST interface.

import type { IErrorRecord } from './protocol';

/** The upload of a snapshot to a remote. */
export interface IUpload {
  remote: string;
  /** `waiting` also before a retry. */
  state: 'waiting' | 'uploading' | 'uploaded' | 'failed';
  done_bytes: number;
  /** An upper bound of the bytes to be sent. */
  total_bytes: number;
  /** The error of a failed upload, or of the last attempt of a waiting one. */
  error: IErrorRecord | null;
}

/** A remote in its last known state. */
export interface IRemote {
  name: string;
  url: string;
  /** The reasons why the remote cannot be used; empty if it can. */
  refusals: string[];
}

/** A snapshot that a remote lists. */
export interface IFarSnapshot {
  snapshot_id: string;
  kernel_id: string;
  created: number;
  title: string;
  raw_bytes: number;
  stored_bytes: number;
  /** Whether this machine has the snapshot, too. */
  here: boolean;
}

/** The snapshots of one notebook in a remote, newest first. */
export interface IFarSession {
  session_id: string;
  host_name: string;
  /** Relative to the root of its server. */
  path: string;
  title: string;
  /** The machine that has the lease of the session, even if it no longer runs; older servers leave this field out. */
  leased_to?: string;
  /** When its user moved it for another machine that has not taken it yet; 0: did not. Older servers do not say it. */
  moved_at?: number;
  snapshots: IFarSnapshot[];
}

/** The sessions and snapshots that a remote lists. */
export interface IFarListing {
  remote: string;
  sessions: IFarSession[];
  /** The reasons why existing sessions are not listed. */
  unreadable: string[];
}

/** The size of a fetch, and whether the kernel could be resumed here. */
export interface IFetchEstimate {
  session: IFarSession;
  snapshot: IFarSnapshot;
  move_bytes: number;
  here_bytes: number;
  /** The obstacles to resuming the kernel here, a sentence each. */
  obstacles: string[];
  /** Possible problems, a sentence each. */
  warnings: string[];
  /** A remedy for the obstacles. */
  hint: string;
}

/** A snapshot to be fetched: its remote, session and id. */
export interface IFarPlace {
  remote: string;
  sessionId: string;
  snapshotId: string;
}
