// The chip in the toolbar of a notebook or a console: the kernel's state, or the progress of an operation. A click shows the kernel's snapshots.

import { ReactWidget } from '@jupyterlab/apputils';
import * as React from 'react';

import type { ISessionPanel } from '../shared/notebooks';
import { kernelIdOf, watchKernel } from '../shared/notebooks';
import {
  percentOf,
  progressText,
  stateCaption,
  stateLabel,
  usageTexts
} from '../shared/texts';
import type { IKernelStates, IUserSettings } from '../shared/tokens';
import { trans } from '../shared/translation';

/** Return a text about a lost connection to a kernel or about its restart; null if the kernel's state must be shown. */
function connectionLabel(panel: ISessionPanel): string | null {
  const kernel = panel.sessionContext.session?.kernel;
  if (kernel && kernel.connectionStatus !== 'connected') {
    return trans.__('Connecting');
  }
  return kernel?.status.endsWith('restarting') ? trans.__('Restarting') : null;
}

export class StateChip extends ReactWidget {
  constructor(
    private readonly _panel: ISessionPanel,
    private readonly _states: IKernelStates,
    private readonly _settings: IUserSettings,
    private readonly _showHistory: () => void
  ) {
    super();
    this.addClass('jp-GpuCkptChip');
    watchKernel(_panel, _states, () => this.update(), _settings);
  }

  protected render(): JSX.Element | null {
    const kernel = this._states.get(kernelIdOf(this._panel) ?? '');
    if (kernel === undefined || !this._settings.choices.showChip) {
      return null;
    }
    const { operation, managed, state } = kernel;
    const label = connectionLabel(this._panel) ?? stateLabel(kernel);
    const percent = operation && percentOf(operation.progress);
    const caption = [
      stateCaption(kernel),
      usageTexts(kernel).join(', '),
      operation ? progressText(operation.progress) : ''
    ];
    return (
      <>
        <button
          type="button"
          className="jp-GpuCkptChip-content"
          data-state={managed ? state : 'unmanaged'}
          title={caption.filter(Boolean).join('\n')}
          onClick={this._showHistory}
        >
          {label}
          {percent !== null ? (
            <span className="jp-GpuCkptChip-progress"> {percent}%</span>
          ) : null}
        </button>
        <span role="status" className="jp-GpuCkpt-spoken">
          {trans.__('Kernel session: %1', label)}
        </span>
      </>
    );
  }
}
