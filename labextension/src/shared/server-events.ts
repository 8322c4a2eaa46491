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
export const isKernelEvent = having<KernelView>(KERNEL_EVENT_SCHEMA);

/** Return whether `event` reports the end of an operation. */
export const isEndEvent = having<IEnd>(OPERATION_EVENT_SCHEMA);

/** Return whether `event` reports a snapshot that was added, changed or removed. */
export const isSnapshotEvent = having<ISnapshotEvent>(SNAPSHOT_EVENT_SCHEMA);

/** Return whether `event` is a notice that this machine will go, or its withdrawal. */
export const isNoticeEvent = having<NoticeView>(NOTICE_EVENT_SCHEMA);

/** Return whether `event` reports an action on a kernel through Jupyter. */
export const isKernelAction = having<IKernelAction>(KERNEL_ACTION_SCHEMA);

function having<T extends object>(schema: string) {
  return (event: object): event is T =>
    (event as { schema_id?: string }).schema_id === schema;
}
