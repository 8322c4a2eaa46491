// Queries of open notebooks for the plugins.

import type { NotebookPanel } from '@jupyterlab/notebook';

import type { IKernelStates } from './tokens';

/** The id of the kernel that a notebook is connected to. */
export function kernelIdOf(panel: NotebookPanel | null): string | null {
  return panel?.sessionContext.session?.kernel?.id ?? null;
}

/** The name that the user knows a notebook by. */
export function nameOf(panel: NotebookPanel): string {
  return panel.title.label;
}

/** Call `react` now and whenever the notebook's kernel may have changed, until the notebook is closed. */
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
