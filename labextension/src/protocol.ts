// The records of the server's REST interface and events, with the same fields.

import type { JSONValue } from '@lumino/coreutils';

import type { IUpload } from './far-protocol';
import type { NotebookContent } from './stored-cells';

/** The state of a kernel. */
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

/** The kind of an operation. */
export type OperationKind =
  | 'save'
  | 'suspend'
  | 'resume'
  | 'park'
  | 'unpark'
  | 'branch'
  | 'roll_back'
  | 'fetch'
  | 'move';

/** The progress of an operation. */
export interface IProgress {
  stage: string;
  done_bytes: number;
  total_bytes: number | null;
  seconds: number;
}

/** The result of an operation. */
export interface IResult {
  snapshot_id: string;
  seconds: number;
  frozen_seconds: number;
  raw_bytes: number;
  stored_bytes: number;
  new_bytes: number;
  gpu_bytes: number;
  /** Messages about a successful operation, e.g. files that changed since the snapshot. */
  warnings?: string[];
}

/** An error of the server. */
export interface IErrorRecord {
  message: string;
  code: string;
  hint: string | null;
  details?: JSONValue;
}

/** An operation (save, suspend, resume ...). It continues if its caller disconnects. */
export interface IOperation {
  operation_id: string;
  kind: OperationKind;
  kernel_id: string;
  state: 'running' | 'succeeded' | 'failed' | 'cancelled';
  progress: IProgress;
  result: IResult | null;
  error: IErrorRecord | null;
  /** The notebook of a branch. */
  path?: string;
}

/** The event of an operation's end, whichever client requested it. */
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

/** A kernel. Sizes are in bytes, times in seconds since the epoch. */
export interface IKernel {
  kernel_id: string;
  state: KernelState;
  /** Whether it was launched under the engine, so that it can be saved. */
  managed: boolean;
  /** The reason why it is not managed, or its last error. */
  reason: string | null;
  hint: string | null;
  /** The code of its last error. */
  error_code: string | null;
  /** The snapshot from which it would be resumed. */
  snapshot_id: string | null;
  /** The operation in flight. */
  operation: IOperation | null;
  /** The notebook's path, or the kernelspec's name; empty if neither is known. */
  path: string;
  kernel_name: string;
  /** The time at which it entered its state; 0: not known. */
  since: number;
  /** The memory of the whole process tree. */
  memory_bytes: number;
  gpu_bytes: number;
  /** The utilization of the GPU in percent; null: not known. */
  gpu_utilization: number | null;
  /** The estimated duration of a resume; null: no similar one was measured. */
  resume_seconds: number | null;
  /** The memory in its snapshot while it is suspended. */
  suspended_bytes: number;
  /** Why it was suspended; null: it is not suspended. */
  suspend_cause: Cause | null;
  /** The time at which it will be suspended because it is idle; null: not soon. */
  suspends_at: number | null;
  /** Whether a cell that is sent to it resumes it. */
  cells_resume: boolean;
  /** How long its process is kept at a restart if it cannot be saved, in seconds; 0: a restart cannot be undone. */
  restart_save_seconds: number;
  /** The snapshot with its state before its last restart. */
  before_restart: string | null;
  /** Whether its process before its last restart is kept and can run on. */
  former_kept: boolean;
  /** Why its last restart cannot be undone; null: it can, or nothing was lost. */
  restart_lost: string | null;
  /** Whether it was suspended in the middle of a cell. */
  cell_paused: boolean;
  /** That another machine has taken its session over, until the user has chosen where its notebook is saved. */
  taken_over: string | null;
  /** When it was seen to change after its last snapshot; null: it was not, or nobody looks. */
  changed_at: number | null;
  /** How long after that it is saved, in seconds; 0: only on request. */
  autosave_seconds: number;
  /** The snapshot that it was branched from. */
  parent_snapshot_id: string | null;
}

/** The reason for taking a snapshot. */
export type Cause =
  | 'manual'
  | 'idle'
  | 'memory'
  | 'shutdown'
  | 'reclaim'
  | 'autosave'
  | 'rollback'
  | 'restart';

/** A variable of a kernel, now or in a snapshot. */
export interface IVariable {
  name: string;
  /** Its type, e.g. "ndarray" or "Tensor on cuda:0". */
  kind: string;
  bytes: number;
  /** A short description of its value, e.g. "float64 (1000, 1000)". */
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
  /** The title that its user chose. */
  title: string;
  /** The execution count of the last cell that had begun, 0 if it is not known, and whether that cell ran. */
  cell: number;
  in_cell: boolean;
  note: string;
  /** Whether retention never removes it. */
  pinned: boolean;
  /** Whether a suspended kernel would be lost without it. */
  needed: boolean;
  kernel_live: boolean;
  /** The time of its deletion, while that can be undone. */
  deleted_at: number | null;
  /** The biggest variables; empty if none are known. */
  variables: IVariable[];
  raw_bytes: number;
  /** The compressed bytes to which it refers. */
  stored_bytes: number;
  /** Those of them that were not in the store before. */
  new_bytes: number;
  gpu_bytes: number;
  frozen_seconds: number;
  seconds: number;
  host_name: string;
  /** One for each remote to which it was, is being or will be uploaded. */
  uploads: IUpload[];
  /** The only remote that has its content; empty: not known. null: its content is here. */
  far_only: string | null;
}

/** The fields of a snapshot that a user may change. */
export type SnapshotChanges = Partial<
  Pick<ISnapshot, 'title' | 'note' | 'pinned'>
>;

/** The result of reading a snapshot and comparing its digests. */
export interface IVerification {
  snapshot_id: string;
  ok: boolean;
  checked_bytes: number;
  seconds: number;
  problems: string[];
}

/** A file that has changed since a snapshot. */
export interface IChangedFile {
  path: string;
  change:
    | 'changed'
    | 'removed'
    | 'smaller'
    | 'missing'
    | 'too_short'
    | 'in_transaction';
  mtime: number;
  length_then: number | null;
  length_now: number | null;
}

/** The changes since a snapshot. */
export interface IChanges {
  files: IChangedFile[];
  /** The obstacles to resuming it here, a sentence each. */
  obstacles: string[];
}

/** The notebook in a snapshot, validated by the server; null if there is none. `modified`: when its file was written before. */
export interface IStoredNotebook {
  notebook: NotebookContent | null;
  modified: number;
}

/** The differences between a snapshot's variables and those of its kernel now. */
export interface IComparison {
  added: IVariable[];
  removed: IVariable[];
  changed: { name: string; then: IVariable; now: IVariable }[];
  /** The names of variables that may have changed. */
  unknown: string[];
  /** The number of unchanged variables. */
  same: number;
}

/** The disk use of the snapshots of one notebook. */
export interface IStoreShare {
  name: string;
  snapshots: number;
  stored_bytes: number;
  raw_bytes: number;
  /** The bytes that their deletion would free. */
  exclusive_bytes: number;
}

/** The store of all snapshots. */
export interface IStore {
  path: string;
  /** The free bytes of its disk. */
  free_bytes: number;
  /** The size of its files. */
  disk_bytes: number;
  stored_bytes: number;
  raw_bytes: number;
  /** `raw_bytes` after deduplication: each chunk counts once. */
  unique_bytes: number;
  snapshots: number;
  by_name: IStoreShare[];
  /** The ids of the snapshots with damaged or missing content. Older servers do not send it. */
  damaged?: string[];
  /** For how many seconds the deletion of a snapshot can be undone; 0: it cannot. Older servers do not send it. */
  undo_delete_seconds?: number;
  /** Older servers do not send it. */
  retention?: IExpiry;
}

/** The server's rules by which snapshots expire; 0: no such rule. */
export interface IExpiry {
  /** How many automatic snapshots of each kernel are kept. */
  keep_last: number;
  /** The age before a kernel's latest snapshot up to which automatic ones are kept. */
  keep_within_seconds: number;
  /** How many suspends by hand of each kernel are kept. */
  keep_suspends: number;
  /** The limit for all snapshots together. */
  max_bytes: number;
}

/** Which snapshots a clean-up keeps: the last automatic ones of each kernel, and with `manual_too` of those that users took. */
export interface IRetention {
  keep_last: number;
  manual_too: boolean;
}

/** What a clean-up removes and frees, or would. */
export interface IPruneReport {
  verdicts: {
    snapshot: Pick<
      ISnapshot,
      | 'snapshot_id'
      | 'created'
      | 'name'
      | 'title'
      | 'cell'
      | 'in_cell'
      | 'cause'
      | 'reason'
    >;
    removed: boolean;
  }[];
  freed_bytes: number;
}

/** A kernel whose shutdown can be undone. */
export interface IShutDown {
  kernel_id: string;
  kernel_name: string;
  /** The path of its notebook; empty if it had none. */
  path: string;
  ends_at: number;
}

/** The event of a snapshot that was added, changed or removed. */
export interface ISnapshotEvent {
  snapshot_id: string;
  kernel_id: string;
  change: 'added' | 'changed' | 'removed' | 'restored';
}

/** A notice that the machine of this server will go, or its withdrawal (`withdrawn`). */
export interface INotice {
  id: string;
  kind:
    'reclaim' | 'stop' | 'maintenance' | 'rebalance' | 'shutdown' | 'requested';
  /** The seconds until the deadline when the notice was sent; null: not known. */
  seconds_left: number | null;
  /** Whether snapshots on the machine's disk can be read afterwards. */
  disk_survives: boolean;
  /** Whether kernels are being suspended for it. */
  is_due: boolean;
  /** Not sent by older servers. */
  is_saving?: boolean;
  withdrawn: boolean;
}

/** Return a kernel from the server's record; fields that an older server leaves out get default values. */
export function asKernel(told: Partial<IKernel> & { kernel_id: string }) {
  return { ...UNKNOWN_KERNEL, ...told };
}

/** Return a snapshot from the server's record; fields that an older server leaves out get default values. */
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
  suspend_cause: null,
  suspends_at: null,
  cells_resume: true,
  restart_save_seconds: 0,
  before_restart: null,
  former_kept: false,
  restart_lost: null,
  cell_paused: false,
  taken_over: null,
  changed_at: null,
  autosave_seconds: 0,
  parent_snapshot_id: null
};

const UNKNOWN_SNAPSHOT: Omit<ISnapshot, 'snapshot_id'> = {
  kernel_id: '',
  created: 0,
  reason: 'save',
  cause: 'manual',
  name: '',
  title: '',
  cell: 0,
  in_cell: false,
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
