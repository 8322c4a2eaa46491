// The banner above a notebook or a console whose kernel is suspended.

import { Poll } from '@lumino/polling';
import * as React from 'react';

import type { IRemotes } from '../remote/remotes';
import { FittedBanner } from '../shared/fitted-banner';
import { suspendIcon } from '../shared/icons';
import type { ISessionPanel } from '../shared/notebooks';
import { kernelIdOf, watchKernel } from '../shared/notebooks';
import { currentReason, isAtRemote, suspendedTexts } from '../shared/texts';
import type { IKernelStates, IUserSettings } from '../shared/tokens';
import { trans } from '../shared/translation';

/** The interval, in milliseconds, at which a visible banner looks where its moved kernel is. */
const LOOK = 60000;

export class SuspendedBanner extends FittedBanner {
  constructor(
    private readonly _panel: ISessionPanel,
    private readonly _states: IKernelStates,
    private readonly _settings: IUserSettings,
    private readonly _remotes: IRemotes,
    /** Resumes the kernel, or gives the reason why that is not possible now. */
    private readonly _resume: () => void,
    private readonly _showHistory: () => void
  ) {
    super();
    this.addClass('jp-GpuCkptSuspended');
    watchKernel(_panel, _states, () => this._follow(), _settings);
    _remotes.changed.connect(this.update, this);
    this._looks = new Poll({
      name: 'jupyter-gpuckpt:moved',
      factory: () => this._look(),
      frequency: { interval: LOOK, backoff: false },
      standby: () => !this.isVisible || document.hidden
    });
  }

  dispose(): void {
    this._remotes.changed.disconnect(this.update, this);
    this._looks.dispose();
    super.dispose();
  }

  protected render(): JSX.Element | null {
    const kernel = this._kernel;
    if (kernel?.state !== 'suspended') {
      return null;
    }
    const where = this._remotes.whereIs(kernel);
    const reason = currentReason(kernel, where);
    const inFlight = this._states.inFlight(kernel.kernel_id) !== null;
    return (
      <div ref={this.measure} className="jp-GpuCkptBanner-content">
        <suspendIcon.react tag="span" stylesheet="menuItem" aria-hidden />
        <span role="status" className="jp-GpuCkptBanner-text">
          {suspendedTexts(kernel, where).join(' ')}
          {reason ? (
            <span className="jp-GpuCkptBanner-problem">
              {' '}
              {reason.replace('\n', ' ')}
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
    if (!hides) {
      void this._look();
    }
  }

  private async _look(): Promise<void> {
    const kernel = this._kernel;
    if (kernel && isAtRemote(kernel)) {
      await this._remotes.lookFor(kernel);
    }
  }

  private get _kernel() {
    return this._states.get(kernelIdOf(this._panel) ?? '');
  }

  private readonly _looks: Poll;
}
