// What the server's event stream tells, told apart.

import type { IEnd, IKernel, INotice, ISnapshotEvent } from './protocol';

const OURS = 'https://events.jupyter.org/jupyter_gpuckpt';

export const KERNEL_EVENT_SCHEMA = `${OURS}/kernel/v1`;
export const OPERATION_EVENT_SCHEMA = `${OURS}/operation/v1`;
export const SNAPSHOT_EVENT_SCHEMA = `${OURS}/snapshot/v1`;
export const NOTICE_EVENT_SCHEMA = `${OURS}/notice/v1`;

/** Jupyter's own: a kernel was started, interrupted, restarted or shut down. */
export const KERNEL_ACTION_SCHEMA =
  'https://events.jupyter.org/jupyter_server/kernel_actions/v1';

export interface IKernelAction {
  action: 'start' | 'interrupt' | 'restart' | 'shutdown';
  kernel_id?: string;
  status?: 'error' | 'success';
}

/** Whether `event` tells a kernel's state. */
export function isKernelEvent(event: object): event is IKernel {
  return is(event, KERNEL_EVENT_SCHEMA, 'kernel_id', 'state');
}

/** Whether `event` tells the end of an operation. */
export function isEndEvent(event: object): event is IEnd {
  return is(event, OPERATION_EVENT_SCHEMA, 'operation_id', 'kind', 'state');
}

/** Whether `event` tells that a snapshot came, changed or went. */
export function isSnapshotEvent(event: object): event is ISnapshotEvent {
  return is(event, SNAPSHOT_EVENT_SCHEMA, 'snapshot_id', 'change');
}

/** Whether `event` tells that this machine will go, or stays after all. */
export function isNoticeEvent(event: object): event is INotice {
  return is(event, NOTICE_EVENT_SCHEMA, 'id', 'kind');
}

/** Whether `event` tells what was done to a kernel through Jupyter. */
export function isKernelAction(event: object): event is IKernelAction {
  return is(event, KERNEL_ACTION_SCHEMA, 'action');
}

function is(event: object, schema: string, ...texts: string[]): boolean {
  const record = event as Record<string, unknown>;
  return (
    record.schema_id === schema &&
    texts.every(name => typeof record[name] === 'string')
  );
}
