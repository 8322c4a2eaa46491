// The banner above a notebook or a console whose kernel is suspended.

import * as React from 'react';

import { FittedBanner } from '../shared/fitted-banner';
import { suspendIcon } from '../shared/icons';
import type { ISessionPanel } from '../shared/notebooks';
import { kernelIdOf, watchKernel } from '../shared/notebooks';
import { lastErrorText, suspendedTexts } from '../shared/texts';
import type { IKernelStates, IUserSettings } from '../shared/tokens';
import { trans } from '../shared/translation';

export class SuspendedBanner extends FittedBanner {
  constructor(
    private readonly _panel: ISessionPanel,
    private readonly _states: IKernelStates,
    private readonly _settings: IUserSettings,
    /** Resumes the kernel, or gives the reason why that is not possible now. */
    private readonly _resume: () => void,
    private readonly _showHistory: () => void
  ) {
    super();
    this.addClass('jp-GpuCkptSuspended');
    watchKernel(_panel, _states, () => this._follow(), _settings);
  }

  protected render(): JSX.Element | null {
    const kernel = this._kernel;
    if (kernel?.state !== 'suspended') {
      return null;
    }
    const inFlight = this._states.inFlight(kernel.kernel_id) !== null;
    return (
      <div ref={this.measure} className="jp-GpuCkptBanner-content">
        <suspendIcon.react tag="span" stylesheet="menuItem" aria-hidden />
        <span role="status" className="jp-GpuCkptBanner-text">
          {suspendedTexts(kernel).join(' ')}
          {kernel.reason ? (
            <span className="jp-GpuCkptBanner-problem">
              {' '}
              {lastErrorText(kernel).replace('\n', ' ')}
            </span>
          ) : null}
        </span>
        <button
          type="button"
          className="jp-mod-styled jp-mod-accept"
          // With `disabled` it would lose the focus.
          aria-disabled={inFlight}
          onClick={this._resume}
        >
          {trans.__('Resume')}
        </button>
        <button
          type="button"
          className="jp-mod-styled"
          onClick={this._showHistory}
        >
          {trans.__('History')}
        </button>
      </div>
    );
  }

  private _follow(): void {
    const kernel = this._kernel;
    // While it is being rolled back it is suspended for a moment.
    const isSuspended =
      kernel?.state === 'suspended' &&
      this._states.inFlight(kernel.kernel_id) !== 'roll_back';
    const hides = !isSuspended || !this._settings.choices.showBanner;
    if (hides && this.node.contains(document.activeElement)) {
      // The focus returns to the cells.
      this._panel.activate();
    }
    this.setHidden(hides);
    this.update();
  }

  private get _kernel() {
    return this._states.get(kernelIdOf(this._panel) ?? '');
  }
}
