// Queries of open notebooks and consoles for the plugins.

import type { ISessionContext } from '@jupyterlab/apputils';
import type { ISignal } from '@lumino/signaling';
import type { Widget } from '@lumino/widgets';

import type { IKernelStates } from './tokens';

/** A panel with a kernel: a notebook or a console. */
export interface ISessionPanel {
  readonly sessionContext: ISessionContext;
  readonly disposed: ISignal<this, void>;
}

/** Return the id of the kernel to which a notebook or a console is connected. */
export function kernelIdOf(panel: ISessionPanel | null): string | null {
  return panel?.sessionContext.session?.kernel?.id ?? null;
}

/** Return whether a widget is a notebook or a console. */
export function hasSession<T extends Widget>(
  widget: T | null
): widget is T & ISessionPanel {
  return !!widget && 'sessionContext' in widget;
}

/** Call `react` now and after every possible change of the panel's kernel, until the panel is closed. */
export function watchKernel(
  panel: ISessionPanel,
  states: IKernelStates,
  react: () => void
): void {
  const onChanged = (_: IKernelStates, kernelId: string) => {
    if (kernelId === '' || kernelId === kernelIdOf(panel)) {
      react();
    }
  };
  states.changed.connect(onChanged);
  const { kernelChanged, statusChanged, connectionStatusChanged } =
    panel.sessionContext;
  const signals = [kernelChanged, statusChanged, connectionStatusChanged];
  signals.forEach(signal => signal.connect(react));
  panel.disposed.connect(() => {
    states.changed.disconnect(onChanged);
    signals.forEach(signal => signal.disconnect(react));
  });
  react();
}
