// The unpark of a kernel whose notebook comes to the front, so that its next cell need not wait for the GPU.

import type { GpuCkptApi } from '../shared/api';
import { asOurs } from '../shared/api';
import type { IKernelStates } from '../shared/tokens';

/** How long a notebook must be in front: tabs that are only passed unpark nothing. */
export const IN_FRONT_MS = 400;

/**
 * Tell the server when the kernel in front is parked; it decides whether the kernel is unparked. `current` returns its id.
 *
 * @returns a function to call when another notebook or console may have come to the front. The page itself calls it for its own focus.
 */
export function unparkInFront(
  states: IKernelStates,
  api: GpuCkptApi,
  current: () => string | null
): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const look = () => {
    const kernelId = current();
    clearTimeout(timer);
    timer = setTimeout(() => {
      if (
        kernelId !== null &&
        kernelId === current() &&
        document.hasFocus() &&
        states.get(kernelId)?.state === 'parked'
      ) {
        // Without an answer the kernel is unparked for its next cell, as ever.
        api.expectCell(kernelId).catch(asOurs);
      }
    }, IN_FRONT_MS);
  };
  window.addEventListener('focus', look);
  return look;
}
