// Queries of open notebooks for the plugins.

import type { NotebookPanel } from '@jupyterlab/notebook';

import type { IKernelStates } from './tokens';

/** Return the id of the kernel to which a notebook is connected. */
export function kernelIdOf(panel: NotebookPanel | null): string | null {
  return panel?.sessionContext.session?.kernel?.id ?? null;
}

/** Return the name of a notebook for users. */
export function nameOf(panel: NotebookPanel): string {
  return panel.title.label;
}

/** Call `react` now and after every possible change of the notebook's kernel, until the notebook is closed. */
export function watchKernel(
  panel: NotebookPanel,
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
