import type { CommandRegistry } from '@lumino/commands';
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
} from './records';

/** The state of every kernel, and the operations on them. */
export interface IKernelStates {
  /** A signal with the id of a kernel that changed; '' if any kernel may have changed. */
  readonly changed: ISignal<IKernelStates, string>;

  /** A signal for the end of an operation that this page has not requested. */
  readonly endedElsewhere: ISignal<IKernelStates, IEnd>;

  /** Return a kernel; undefined while it is not known. */
  get(kernelId: string): IKernel | undefined;

  /** Return all known kernels. */
  all(): IKernel[];

  /** Return the error of the last request about a kernel or about all kernels; null if it succeeded. */
  problem(kernelId: string): GpuCkptError | null;

  /** Return the kind of the operation that was requested or runs on a kernel, by any client; else null. */
  inFlight(kernelId: string): OperationKind | null;

  /** Request one kernel again. */
  refresh(kernelId: string): Promise<void>;

  /** Request all kernels again, because events may have been lost. */
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
   * Start a second kernel from a snapshot; return and throw as `run` does. `onStarted` is called with the operation as soon as it
   * has an id. `notebook`: the path of its notebook, by default that of a new copy of the snapshot's notebook. `answers`: further
   * fields of the request, after a refusal.
   */
  branch(
    snapshotId: string,
    onStarted?: (operation: IOperation) => void,
    notebook?: string,
    answers?: JSONObject
  ): Promise<IOperation>;

  /** Ask the operation in flight on a kernel to stop and to undo its work. */
  cancel(kernelId: string): Promise<void>;

  /** Wait for the end of an operation that this page has requested; return and throw as `run` does. */
  finish(
    started: Promise<IOperation>,
    onProgress?: (progress: IProgress) => void
  ): Promise<IOperation>;
}

export const IKernelStates = new Token<IKernelStates>(
  'jupyter-gpuckpt:IKernelStates',
  'The state of every kernel that can be saved, and the operations on them.'
);

/** The user's snapshots and their store, kept up to date while they are watched. */
export interface ISnapshots {
  /** A signal for changes of the list or the store. */
  readonly changed: ISignal<ISnapshots, void>;

  /** The snapshots, newest first; null before the first answer of the server. */
  readonly list: readonly ISnapshot[] | null;

  /** The disk use of the store; null while it is not known. */
  readonly store: IStore | null;

  /** The error of the last request; null if it succeeded. */
  readonly problem: GpuCkptError | null;

  /** The interface for requests whose results are not kept here. */
  readonly api: GpuCkptApi;

  /** Request the snapshots and follow the server's events, until the result is disposed. */
  watch(): IDisposable;

  /** Return the snapshot of this id; request the list if it is not known. */
  find(snapshotId: string): Promise<ISnapshot | undefined>;

  /** Request the snapshots again, because events may have been lost. */
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

/** The user's settings as they are now, with a signal for changes. */
export interface IUserSettings {
  readonly choices: IChoices;
  readonly changed: ISignal<IUserSettings, void>;
}

export const IUserSettings = new Token<IUserSettings>(
  'jupyter-gpuckpt:IUserSettings',
  'What the user has chosen for the user interface of snapshots.'
);

/** The data of the panel "Sessions" and the actions of its buttons. */
export interface IPanelContext {
  states: IKernelStates;
  snapshots: ISnapshots;
  commands: CommandRegistry;
  openNotebook: (path: string) => void;
  /** Returns the path of the current notebook, or ''. */
  currentPath: () => string;
}
