// Records shared with the server, field by field as they travel.

import type { JSONValue } from '@lumino/coreutils';

import type { IUpload } from './far-protocol';

/** Where a kernel is in its life. */
export type KernelState =
  | 'starting'
  | 'running'
  | 'saving'
  | 'parking'
  | 'parked'
  | 'unparking'
  | 'suspending'
  | 'suspended'
  | 'resuming'
  | 'lost';

/** What an operation does. */
export type OperationKind =
  | 'save'
  | 'suspend'
  | 'resume'
  | 'park'
  | 'unpark'
  | 'branch'
  | 'roll_back'
  | 'fetch';

/** How far an operation is. */
export interface IProgress {
  stage: string;
  done_bytes: number;
  total_bytes: number | null;
  seconds: number;
}

/** What an operation did. */
export interface IResult {
  snapshot_id: string;
  seconds: number;
  frozen_seconds: number;
  raw_bytes: number;
  stored_bytes: number;
  new_bytes: number;
  gpu_bytes: number;
  /** Said though the operation succeeded, e.g. files that changed since the snapshot. */
  warnings?: string[];
}

/** An error as the server tells it. */
export interface IErrorRecord {
  message: string;
  code: string;
  hint: string | null;
  details?: JSONValue;
}

/** A save, suspend, resume ...; it goes on when its caller goes away. */
export interface IOperation {
  operation_id: string;
  kind: OperationKind;
  kernel_id: string;
  state: 'running' | 'succeeded' | 'failed' | 'cancelled';
  progress: IProgress;
  result: IResult | null;
  error: IErrorRecord | null;
  /** The notebook that a branch is in. */
  path?: string;
}

/** The end of an operation, whoever asked for it; it comes as an event. */
export interface IEnd {
  operation_id: string;
  kind: OperationKind;
  kernel_id: string;
  /** The notebook's path, or the kernelspec's name. */
  name: string;
  state: 'succeeded' | 'failed' | 'cancelled';
  result: IResult | null;
  error: IErrorRecord | null;
}

/** A kernel as the engine sees it. Sizes in bytes, times in seconds since the epoch. */
export interface IKernel {
  kernel_id: string;
  state: KernelState;
  /** Whether it runs under the engine. */
  managed: boolean;
  /** Why it is not managed, or why a resume failed. */
  reason: string | null;
  hint: string | null;
  /** The code of its last error. */
  error_code: string | null;
  /** What a resume would use. */
  snapshot_id: string | null;
  /** The operation in flight. */
  operation: IOperation | null;
  /** The notebook's path, or the kernelspec's name; empty where neither is known. */
  path: string;
  kernel_name: string;
  /** When it came into its state; 0: not known. */
  since: number;
  /** Of the whole tree of processes. */
  memory_bytes: number;
  gpu_bytes: number;
  /** Percent; null: not known. */
  gpu_utilization: number | null;
  /** What a resume will take; null: nothing like it has been measured. */
  resume_seconds: number | null;
  /** What its snapshot holds while it is suspended. */
  suspended_bytes: number;
  /** When it will be suspended because it is idle; null: not soon. */
  suspends_at: number | null;
  /** Whether a cell that is sent to it resumes it. */
  cells_resume: boolean;
  /** Whether it was suspended in the middle of a cell. */
  cell_paused: boolean;
  /** The snapshot that it was branched from. */
  parent_snapshot_id: string | null;
}

/** Why a snapshot was taken. */
export type Cause =
  | 'manual'
  | 'idle'
  | 'shutdown'
  | 'reclaim'
  | 'autosave'
  | 'rollback'
  | 'restart';

/** A variable of a kernel, now or as of a snapshot. */
export interface IVariable {
  name: string;
  /** Its type, e.g. "ndarray" or "Tensor on cuda:0". */
  kind: string;
  bytes: number;
  /** A few words on its value, e.g. "float64 (1000, 1000)". */
  summary: string;
}

/** A snapshot. */
export interface ISnapshot {
  snapshot_id: string;
  kernel_id: string;
  created: number;
  reason: 'save' | 'suspend';
  cause: Cause;
  /** The notebook's path, or the kernelspec's name. */
  name: string;
  /** The name that its user gave it. */
  title: string;
  note: string;
  /** Retention never removes it. */
  pinned: boolean;
  /** A suspended kernel would be lost without it. */
  needed: boolean;
  kernel_live: boolean;
  /** When it was deleted, as long as that can be undone. */
  deleted_at: number | null;
  /** The biggest ones; empty where none are known. */
  variables: IVariable[];
  raw_bytes: number;
  /** Compressed bytes that it refers to. */
  stored_bytes: number;
  /** Of these, bytes that were not in the store before. */
  new_bytes: number;
  gpu_bytes: number;
  frozen_seconds: number;
  seconds: number;
  host_name: string;
  /** One for each remote to which it went, goes or is to go. */
  uploads: IUpload[];
  /** The remote that alone has its content; empty: not known which. null: it is here. */
  far_only: string | null;
}

/** What a user may change of a snapshot. */
export type SnapshotChanges = Partial<
  Pick<ISnapshot, 'title' | 'note' | 'pinned'>
>;

/** A snapshot's bytes, read and compared. */
export interface IVerification {
  snapshot_id: string;
  ok: boolean;
  checked_bytes: number;
  seconds: number;
  problems: string[];
}

/** A file that differs from what it was when a snapshot was taken. */
export interface IChangedFile {
  path: string;
  change: 'changed' | 'removed' | 'smaller';
  mtime: number;
  length_then: number | null;
  length_now: number | null;
}

/** What became since a snapshot. */
export interface IChanges {
  files: IChangedFile[];
  /** What keeps it from being resumed here, in sentences. */
  obstacles: string[];
}

/** A snapshot's variables beside those of its kernel now. */
export interface IComparison {
  added: IVariable[];
  removed: IVariable[];
  changed: { name: string; then: IVariable; now: IVariable }[];
  /** Names of which it cannot be told. */
  unknown: string[];
  /** How many are as they were. */
  same: number;
}

/** What the snapshots of one notebook take. */
export interface IStoreShare {
  name: string;
  snapshots: number;
  stored_bytes: number;
  raw_bytes: number;
  /** What would be free if they were deleted. */
  exclusive_bytes: number;
}

/** The store of all snapshots. */
export interface IStore {
  path: string;
  /** Of its disk. */
  free_bytes: number;
  /** What its files take. */
  disk_bytes: number;
  stored_bytes: number;
  raw_bytes: number;
  /** What is left of `raw_bytes` when each chunk counts once. */
  unique_bytes: number;
  snapshots: number;
  by_name: IStoreShare[];
  growth: { time: number; stored_bytes: number }[];
}

/** A kernel whose shutdown can be undone. */
export interface IShutDown {
  kernel_id: string;
  kernel_name: string;
  /** Of its notebook; empty if it had none. */
  path: string;
  ends_at: number;
}

/** A snapshot came, changed or went; it comes as an event. */
export interface ISnapshotEvent {
  snapshot_id: string;
  kernel_id: string;
  change: 'added' | 'changed' | 'removed' | 'restored';
}

/** The machine of this server will go, or stays after all (`withdrawn`). */
export interface INotice {
  id: string;
  kind:
    'reclaim' | 'stop' | 'maintenance' | 'rebalance' | 'shutdown' | 'requested';
  /** From when it was told; null: not known. */
  seconds_left: number | null;
  /** Whether snapshots on its disk can be read afterwards. */
  disk_survives: boolean;
  /** Whether kernels are being suspended for it. */
  is_due: boolean;
  withdrawn: boolean;
}

/** A kernel as the server tells it; an older server tells less. */
export function asKernel(told: Partial<IKernel> & { kernel_id: string }) {
  return { ...UNKNOWN_KERNEL, ...told };
}

/** A snapshot as the server tells it; an older server tells less. */
export function asSnapshot(told: Partial<ISnapshot> & { snapshot_id: string }) {
  return { ...UNKNOWN_SNAPSHOT, ...told };
}

const UNKNOWN_KERNEL: Omit<IKernel, 'kernel_id'> = {
  state: 'starting',
  managed: false,
  reason: null,
  hint: null,
  error_code: null,
  snapshot_id: null,
  operation: null,
  path: '',
  kernel_name: '',
  since: 0,
  memory_bytes: 0,
  gpu_bytes: 0,
  gpu_utilization: null,
  resume_seconds: null,
  suspended_bytes: 0,
  suspends_at: null,
  cells_resume: true,
  cell_paused: false,
  parent_snapshot_id: null
};

const UNKNOWN_SNAPSHOT: Omit<ISnapshot, 'snapshot_id'> = {
  kernel_id: '',
  created: 0,
  reason: 'save',
  cause: 'manual',
  name: '',
  title: '',
  note: '',
  pinned: false,
  needed: false,
  kernel_live: false,
  deleted_at: null,
  variables: [],
  raw_bytes: 0,
  stored_bytes: 0,
  new_bytes: 0,
  gpu_bytes: 0,
  frozen_seconds: 0,
  seconds: 0,
  host_name: '',
  uploads: [],
  far_only: null
};
