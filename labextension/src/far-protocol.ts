// Records about remotes and the snapshots in them, field by field as they travel.

import type { IErrorRecord } from './protocol';

/** A snapshot's way to a remote. */
export interface IUpload {
  remote: string;
  /** `waiting` also while it is tried again. */
  state: 'waiting' | 'uploading' | 'uploaded' | 'failed';
  done_bytes: number;
  /** An upper bound of the bytes to be sent. */
  total_bytes: number;
  /** The error of a failed upload, or of the last attempt of a waiting one. */
  error: IErrorRecord | null;
}

/** A remote as it was when it was last tried. */
export interface IRemote {
  name: string;
  url: string;
  /** With one of these it cannot be used. */
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
  /** Whether this machine has it, too. */
  here: boolean;
}

/** The snapshots of one notebook in a remote, newest first. */
export interface IFarSession {
  session_id: string;
  host_name: string;
  /** Relative to the root of its server. */
  path: string;
  title: string;
  /** The machine that has the right to run it, whether it lives or not; older servers do not say it. */
  leased_to?: string;
  snapshots: IFarSnapshot[];
}

/** What a remote lists. */
export interface IFarListing {
  remote: string;
  sessions: IFarSession[];
  /** Why sessions that are there are not listed. */
  unreadable: string[];
}

/** What a fetch would move, and whether the kernel could be resumed here. */
export interface IFetchEstimate {
  session: IFarSession;
  snapshot: IFarSnapshot;
  move_bytes: number;
  here_bytes: number;
  /** What keeps the kernel from being resumed here, in sentences. */
  obstacles: string[];
  /** What may. */
  warnings: string[];
  /** What would help. */
  hint: string;
}

/** Which snapshot is to be fetched. */
export interface IFarPlace {
  remote: string;
  sessionId: string;
  snapshotId: string;
}
