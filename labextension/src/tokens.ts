import type { JSONObject } from '@lumino/coreutils';
import { Token } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';

import type { GpuCkptApi, GpuCkptError } from './api';
import type {
  IEnd,
  IKernel,
  IOperation,
  IProgress,
  ISnapshot,
  IStore,
  OperationKind,
  SnapshotChanges
} from './protocol';

/** The state of every kernel, and the operations on them. */
export interface IKernelStates {
  /** Emitted with the kernel's id when something about a kernel changed; with '' when any may have. */
  readonly changed: ISignal<IKernelStates, string>;

  /** Emitted when an operation has ended that this page has not asked for. */
  readonly endedElsewhere: ISignal<IKernelStates, IEnd>;

  /** The kernel, or undefined while nothing is known of it. */
  get(kernelId: string): IKernel | undefined;

  /** All that are known. */
  all(): IKernel[];

  /** Why nothing is known of the kernel, once the server has been asked in vain. */
  problem(kernelId: string): GpuCkptError | null;

  /** What has been asked for or runs on the kernel, in any tab or shell. */
  inFlight(kernelId: string): OperationKind | null;

  /** Ask the server again about one kernel. */
  refresh(kernelId: string): Promise<void>;

  /** Ask the server again about all kernels; for when events may have been lost. */
  refreshAll(): Promise<void>;

  /**
   * Save, suspend, resume ... a kernel.
   *
   * @returns the operation when it has succeeded.
   * @throws GpuCkptError when it was refused, failed or was cancelled.
   */
  run(
    kind: OperationKind,
    kernelId: string,
    body?: JSONObject
  ): Promise<IOperation>;

  /**
   * Start a second kernel from a snapshot; as `run`. `onStarted` hears of the operation as soon as it has an id.
   * `notebook`: where it is to be; by default in a copy of the snapshot's.
   */
  branch(
    snapshotId: string,
    onStarted?: (operation: IOperation) => void,
    notebook?: string
  ): Promise<IOperation>;

  /** Ask the operation in flight on a kernel to stop and to undo what it did. */
  cancel(kernelId: string): Promise<void>;

  /** Wait for the end of an operation that this page has asked for; as `run`. */
  finish(
    started: Promise<IOperation>,
    onProgress?: (progress: IProgress) => void
  ): Promise<IOperation>;
}

export const IKernelStates = new Token<IKernelStates>(
  'jupyter-gpuckpt:IKernelStates',
  'The state of every kernel that can be saved, and the operations on them.'
);

/** The user's snapshots and the store that they lie in; kept up to date while somebody looks. */
export interface ISnapshots {
  /** Emitted when the list, or what is known of the store, has changed. */
  readonly changed: ISignal<ISnapshots, void>;

  /** Newest first; null as long as the server has not been asked. */
  readonly list: readonly ISnapshot[] | null;

  /** What the store holds; null as long as that is not known. */
  readonly store: IStore | null;

  /** Why the last question was in vain. */
  readonly problem: GpuCkptError | null;

  /** The requests that change nothing here. */
  readonly api: GpuCkptApi;

  /** Ask the server, and follow what it tells until disposed. */
  watch(): IDisposable;

  /** The snapshot of this id, asked for if it is not known. */
  find(snapshotId: string): Promise<ISnapshot | undefined>;

  /** Ask the server again; for when events may have been lost. */
  refresh(): Promise<void>;

  change(snapshotId: string, changes: SnapshotChanges): Promise<void>;
  delete(snapshotId: string): Promise<void>;
  undelete(snapshotId: string): Promise<void>;
  import(file: Blob): Promise<void>;
}

export const ISnapshots = new Token<ISnapshots>(
  'jupyter-gpuckpt:ISnapshots',
  'The snapshots of the user, and the store that they lie in.'
);

/** The user's settings; see schema/settings.json. */
export interface IChoices {
  defaultAction: 'save' | 'suspend';
  askForTitle: boolean;
  confirmSuspend: boolean;
  confirmRollBack: boolean;
  confirmDelete: boolean;
  showChip: boolean;
  showBanner: boolean;
  notifications: 'all' | 'own' | 'failures' | 'none';
}

/** The user's choices, as they are now. */
export interface IUserSettings {
  readonly choices: IChoices;
  readonly changed: ISignal<IUserSettings, void>;
}

export const IUserSettings = new Token<IUserSettings>(
  'jupyter-gpuckpt:IUserSettings',
  'What the user has chosen for the user interface of snapshots.'
);
