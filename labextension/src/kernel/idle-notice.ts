// The notification that an idle kernel will be suspended, with a button that keeps the kernel running.

import { Notification } from '@jupyterlab/apputils';

import type { GpuCkptApi } from '../shared/api';
import { formatInstant, formatSeconds } from '../shared/format';
import { orTell } from '../shared/notices';
import type { Operations } from '../shared/operations';
import type { KernelView } from '../shared/records';
import { kernelName } from '../shared/texts';
import type { IKernelStates } from '../shared/tokens';
import { trans } from '../shared/translation';

/** Return the text about when an idle kernel will be suspended; '' if it will not be. `activity`: its last one, as an ISO date. */
export function idleText(
  { state, idle_seconds }: KernelView,
  activity: string | undefined,
  now = Date.now()
): string {
  if (!idle_seconds || !activity || state !== 'running') {
    return '';
  }
  const left = idle_seconds - (now - Date.parse(activity)) / 1000;
  // The server looks at its kernels only now and then.
  return left > 60
    ? trans.__('suspends in %1', formatSeconds(left))
    : trans.__('suspends soon');
}

/** Show the notification for every kernel that will be suspended, and after the suspend one about the memory that was freed. */
export function followIdleKernels(
  states: IKernelStates,
  api: GpuCkptApi,
  operations: Operations
): void {
  /** The ids of the visible notifications, by kernel. */
  const shown = new Map<string, string>();
  const keep = (kernelId: string) =>
    orTell(trans.__('The kernel may still be suspended'), () =>
      api.keepRunning(kernelId)
    );
  states.changed.connect(() => {
    const soon = states.all().filter(({ suspends_at }) => suspends_at !== null);
    for (const kernel of soon) {
      const { kernel_id, suspends_at } = kernel;
      if (!shown.has(kernel_id)) {
        operations.expect(kernel_id);
        const message = trans.__(
          '%1 is idle. It will be suspended at %2 to free its memory and GPU.',
          kernelName(kernel),
          formatInstant(suspends_at ?? 0)
        );
        const label = trans.__('Keep Running');
        const action = { label, callback: () => void keep(kernel_id) };
        const options = { autoClose: false as const, actions: [action] };
        shown.set(kernel_id, Notification.warning(message, options));
      }
    }
    for (const [kernelId, id] of shown) {
      if (!soon.some(({ kernel_id }) => kernel_id === kernelId)) {
        shown.delete(kernelId);
        Notification.dismiss(id);
      }
    }
  });
}
