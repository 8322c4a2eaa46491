// The kinds of events in the server's event stream.

import type { IEnd, KernelView, NoticeView, ISnapshotEvent } from './records';

const OURS = 'https://events.jupyter.org/jupyter_gpuckpt';

export const KERNEL_EVENT_SCHEMA = `${OURS}/kernel/v1`;
export const OPERATION_EVENT_SCHEMA = `${OURS}/operation/v1`;
export const SNAPSHOT_EVENT_SCHEMA = `${OURS}/snapshot/v1`;
export const NOTICE_EVENT_SCHEMA = `${OURS}/notice/v1`;

/** The schema of Jupyter's own events: a kernel was started, interrupted, restarted or shut down. */
export const KERNEL_ACTION_SCHEMA =
  'https://events.jupyter.org/jupyter_server/kernel_actions/v1';

export interface IKernelAction {
  action: 'start' | 'interrupt' | 'restart' | 'shutdown';
  kernel_id?: string;
  status?: 'error' | 'success';
}

/** Return whether `event` has a kernel's state. */
export function isKernelEvent(event: object): event is KernelView {
  return is(event, KERNEL_EVENT_SCHEMA, 'kernel_id', 'state');
}

/** Return whether `event` reports the end of an operation. */
export function isEndEvent(event: object): event is IEnd {
  return is(event, OPERATION_EVENT_SCHEMA, 'operation_id', 'kind', 'state');
}

/** Return whether `event` reports a snapshot that was added, changed or removed. */
export function isSnapshotEvent(event: object): event is ISnapshotEvent {
  return is(event, SNAPSHOT_EVENT_SCHEMA, 'snapshot_id', 'change');
}

/** Return whether `event` is a notice that this machine will go, or its withdrawal. */
export function isNoticeEvent(event: object): event is NoticeView {
  return is(event, NOTICE_EVENT_SCHEMA, 'id', 'kind');
}

/** Return whether `event` reports an action on a kernel through Jupyter. */
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
