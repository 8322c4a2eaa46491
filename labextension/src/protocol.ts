// Records shared with the server, field by field as they travel.

import type { JSONValue } from '@lumino/coreutils';

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
export type OperationKind = 'save' | 'suspend' | 'resume';

/** How far an operation is. */
export interface IProgress {
  stage: string;
  done_bytes: number;
  total_bytes: number | null;
  seconds: number;
}

/** What a resume did. */
export interface IResumeResult {
  snapshot_id: string;
  seconds: number;
  raw_bytes: number;
  gpu_bytes: number;
  /** Said though the operation succeeded, e.g. files that changed since the snapshot. */
  warnings?: string[];
}

/** What a save or a suspend did. */
export interface ISaveResult extends IResumeResult {
  frozen_seconds: number;
  stored_bytes: number;
  new_bytes: number;
}

/** An error as the server tells it. */
export interface IErrorRecord {
  message: string;
  code: string;
  hint: string | null;
  details?: JSONValue;
}

/** A save, suspend or resume; it goes on when its caller goes away. */
interface IOperationBase {
  operation_id: string;
  kernel_id: string;
  state: 'running' | 'succeeded' | 'failed' | 'cancelled';
  progress: IProgress;
  error: IErrorRecord | null;
}

export interface ISaveOperation extends IOperationBase {
  kind: 'save' | 'suspend';
  result: ISaveResult | null;
}

export interface IResumeOperation extends IOperationBase {
  kind: 'resume';
  result: IResumeResult | null;
}

export type IOperation = ISaveOperation | IResumeOperation;

/** A kernel as the engine sees it. */
export interface IKernel {
  kernel_id: string;
  state: KernelState;
  /** Whether it runs under the engine. */
  managed: boolean;
  /** Why it is not managed, or why a resume failed. */
  reason: string | null;
  hint: string | null;
  /** What a resume would use. */
  snapshot_id: string | null;
  /** The operation in flight. */
  operation: IOperation | null;
}

/** The schema of the event that tells a kernel's state; its data is an `IKernel`. */
export const KERNEL_EVENT_SCHEMA =
  'https://events.jupyter.org/jupyter_gpuckpt/kernel/v1';

/** Whether `value`, which came over the event stream, tells a kernel's state. */
export function isKernelEvent(value: object): value is IKernel {
  const event = value as Partial<IKernel> & { schema_id?: string };
  return (
    event.schema_id === KERNEL_EVENT_SCHEMA &&
    typeof event.kernel_id === 'string' &&
    typeof event.state === 'string'
  );
}
