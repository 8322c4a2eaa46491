// What Jupyter's own indicators (the circle in the toolbar, the status bar) say of a kernel that has no process.

import type { ISessionContext } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import type { Signal } from '@lumino/signaling';

import { kernelIdOf, watchKernel } from './notebooks';
import type { KernelState } from './protocol';
import type { IKernelStates } from './tokens';

/** The nearest of Jupyter's words: it knows no others, and would go on saying "Idle". */
const SHOWN: Partial<Record<KernelState, ISessionContext.KernelDisplayStatus>> =
  {
    suspending: 'busy',
    suspended: 'disconnected',
    resuming: 'starting',
    lost: 'disconnected'
  };

/** Let the indicators of a notebook follow the state of its kernel. */
export function followState(panel: NotebookPanel, states: IKernelStates): void {
  const context = panel.sessionContext;
  const shown = () =>
    SHOWN[states.get(kernelIdOf(panel) ?? '')?.state ?? 'running'];
  const prototype: unknown = Object.getPrototypeOf(context);
  Object.defineProperty(context, 'kernelDisplayStatus', {
    configurable: true,
    get: () =>
      // While the server is away nothing is known of the kernel.
      (context.session?.kernel?.connectionStatus === 'connected' && shown()) ||
      Reflect.get(prototype as object, 'kernelDisplayStatus', context)
  });
  let before = shown();
  watchKernel(panel, states, () => {
    const status = context.session?.kernel?.status;
    if (shown() !== before && status) {
      before = shown();
      (context.statusChanged as Signal<ISessionContext, Kernel.Status>).emit(
        status
      );
    }
  });
}
