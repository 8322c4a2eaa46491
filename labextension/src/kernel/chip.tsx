// The chip in the toolbar of a notebook or a console: the kernel's state, or the progress of an operation. A click shows the kernel's snapshots.

import { ReactWidget } from '@jupyterlab/apputils';
import type { Kernel } from '@jupyterlab/services';
import { Poll } from '@lumino/polling';
import * as React from 'react';

import { unsavedText } from './at-risk';
import { idleText } from './idle-notice';

import type { ISessionPanel } from '../shared/notebooks';
import { kernelIdOf, watchKernel } from '../shared/notebooks';
import type { KernelView } from '../shared/records';
import {
  percentOf,
  progressText,
  stateCaption,
  stateLabel,
  usageTexts
} from '../shared/texts';
import type { IKernelStates, IUserSettings } from '../shared/tokens';
import { trans } from '../shared/translation';

/** The interval at which times are drawn, in milliseconds. */
const REDRAW = 30000;

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
    private readonly _showHistory: () => void,
    private readonly _kernels: Pick<Kernel.IManager, 'running'>
  ) {
    super();
    this.addClass('jp-GpuCkptChip');
    watchKernel(_panel, _states, () => this.update(), _settings);
    this._clock = new Poll({
      name: 'jupyter-gpuckpt:chip',
      factory: async () => this.update(),
      frequency: { interval: REDRAW, backoff: false },
      standby: () =>
        !this.isVisible ||
        !(this._kernel?.idle_seconds || this._kernel?.changed_at)
    });
  }

  dispose(): void {
    this._clock.dispose();
    super.dispose();
  }

  protected render(): JSX.Element | null {
    const kernel = this._kernel;
    if (kernel === undefined || !this._settings.choices.showChip) {
      return null;
    }
    const { operation, managed, state } = kernel;
    const label = connectionLabel(this._panel) ?? stateLabel(kernel);
    const idle = operation ? '' : this._idleText(kernel);
    const percent = operation && percentOf(operation.progress);
    const caption = [
      stateCaption(kernel),
      usageTexts(kernel).join(', '),
      unsavedText(kernel, Date.now() / 1000),
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
          {idle ? <span className="jp-GpuCkptChip-idle"> · {idle}</span> : null}
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

  /** Return the text about when the kernel will be suspended because it is idle; '' while it is not. */
  private _idleText(kernel: KernelView): string {
    const connection = this._panel.sessionContext.session?.kernel;
    const model = [...this._kernels.running()].find(
      ({ id }) => id === kernel.kernel_id
    );
    return connection?.status === 'idle'
      ? idleText(kernel, model?.last_activity)
      : '';
  }

  private get _kernel(): KernelView | undefined {
    return this._states.get(kernelIdOf(this._panel) ?? '');
  }

  private readonly _clock: Poll;
}
