// The chip in the notebook's toolbar: the kernel's state and, meanwhile, an operation's progress.

import { ReactWidget } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { kernelIdOf, watchKernel } from './notebooks';
import { progressText, stateCaption, stateLabel } from './texts';
import type { IKernelStates } from './tokens';

export class StateChip extends ReactWidget {
  constructor(
    private readonly _panel: NotebookPanel,
    private readonly _states: IKernelStates,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-GpuCkptChip');
    watchKernel(_panel, _states, () => this.update());
  }

  protected render(): JSX.Element | null {
    const kernel = this._states.get(kernelIdOf(this._panel) ?? '');
    if (kernel === undefined) {
      return null;
    }
    const trans = this._trans;
    const progress =
      kernel.operation && progressText(kernel.operation.progress);
    return (
      <span
        className="jp-GpuCkptChip-content"
        data-state={kernel.managed ? kernel.state : 'unmanaged'}
        title={stateCaption(kernel, trans)}
      >
        <span role="status">
          {kernel.managed
            ? stateLabel(kernel.state, trans)
            : trans.__('No snapshots')}
        </span>
        {progress ? (
          <span className="jp-GpuCkptChip-progress">{progress}</span>
        ) : null}
      </span>
    );
  }
}
