// The states that Jupyter's own indicators (the circle in the toolbar, the status bar) show for a kernel that has no process.

import type { ISessionContext } from '@jupyterlab/apputils';
import type { Kernel } from '@jupyterlab/services';
import type { Signal } from '@lumino/signaling';

import type { ISessionPanel } from '../shared/notebooks';
import { kernelIdOf, watchKernel } from '../shared/notebooks';
import type { KernelState } from '../shared/records';
import type { IKernelStates } from '../shared/tokens';

/**
 * The most similar of Jupyter's states, which has no others and would continue to show "Idle"; '' if none is similar. Then it shows no
 * state beside that of the chip.
 */
const SHOWN: Partial<Record<KernelState, ISessionContext.KernelDisplayStatus>> =
  {
    suspending: 'busy',
    suspended: '',
    resuming: 'starting',
    lost: 'disconnected'
  };

/** Make the indicators of a notebook or a console follow the state of its kernel. */
export function followState(panel: ISessionPanel, states: IKernelStates): void {
  const context = panel.sessionContext;
  const shown = () =>
    SHOWN[states.get(kernelIdOf(panel) ?? '')?.state ?? 'running'];
  const prototype: unknown = Object.getPrototypeOf(context);
  Object.defineProperty(context, 'kernelDisplayStatus', {
    configurable: true,
    get: () => {
      // Without a connection to the server the kernel's state is not known.
      const isConnected =
        context.session?.kernel?.connectionStatus === 'connected';
      const theirs = () =>
        Reflect.get(prototype as object, 'kernelDisplayStatus', context);
      return (isConnected ? shown() : undefined) ?? theirs();
    }
  });
  let before = shown();
  watchKernel(panel, states, () => {
    panel.toggleClass('jp-mod-gpuckpt-suspended', shown() === '');
    const status = context.session?.kernel?.status;
    if (shown() !== before && status) {
      before = shown();
      (context.statusChanged as Signal<ISessionContext, Kernel.Status>).emit(
        status
      );
    }
  });
}
