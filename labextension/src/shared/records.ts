// The records of the server's REST interface and events, from the types that its OpenAPI document makes (`rest-types.ts`).

import type { INotebookModel } from '@jupyterlab/notebook';

import type {
  ErrorView,
  OperationState,
  OperationView,
  RetentionPolicy,
  SnapshotView,
  StoredNotebook
} from './rest-types';

export type * from './rest-types';

/** An error of the server, or one that this page found itself. */
export type IErrorRecord = Pick<ErrorView, 'message' | 'code'> &
  Partial<ErrorView>;

/** An operation (save, suspend, resume ...). It continues if its caller disconnects. */
export interface IOperation extends OperationView {
  /** The notebook of a branch. */
  path?: string;
}

/** The event of an operation's end, whichever client requested it. */
export interface IEnd extends Omit<OperationView, 'progress'> {
  /** The notebook's path, or the kernelspec's name. */
  name: string;
  state: Exclude<OperationState, 'running'>;
}

/** The fields of a snapshot that a user may change. */
export type SnapshotChanges = Partial<
  Pick<SnapshotView, 'title' | 'note' | 'pinned'>
>;

/** The content of a notebook. */
export type NotebookContent = ReturnType<
  INotebookModel['sharedModel']['toJSON']
>;

/** The notebook in a snapshot, validated by the server. */
export interface IStoredNotebook extends Omit<StoredNotebook, 'notebook'> {
  notebook: NotebookContent | null;
}

/** Which snapshots a clean-up keeps: the last automatic ones of each kernel, and with `manual_too` of those that users took. */
export type IRetention = Pick<RetentionPolicy, 'keep_last' | 'manual_too'>;

/** The event of a snapshot that was added, changed or removed. */
export interface ISnapshotEvent {
  snapshot_id: string;
  kernel_id: string;
  change: 'added' | 'changed' | 'removed' | 'restored';
}

/** A snapshot to be fetched: its remote, session and id. */
export interface IRemotePlace {
  remote: string;
  sessionId: string;
  snapshotId: string;
}
