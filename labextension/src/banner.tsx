// The notice above a notebook whose kernel is suspended.

import { ReactWidget } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { kernelIdOf, watchKernel } from './notebooks';
import type { IKernelStates } from './tokens';

export class SuspendedBanner extends ReactWidget {
  constructor(
    private readonly _panel: NotebookPanel,
    private readonly _states: IKernelStates,
    private readonly _trans: TranslationBundle,
    private readonly _resume: () => void
  ) {
    super();
    this.addClass('jp-GpuCkptBanner');
    watchKernel(_panel, _states, () => {
      this.setHidden(this._kernel?.state !== 'suspended');
      this.update();
    });
  }

  protected render(): JSX.Element {
    const trans = this._trans;
    return (
      <>
        <span role="status">
          {trans.__('This notebook’s kernel is suspended.')}{' '}
          {this._kernel?.reason} {this._kernel?.hint}
        </span>
        <button
          className="jp-mod-styled jp-mod-accept"
          disabled={
            this._states.inFlight(this._kernel?.kernel_id ?? '') !== null
          }
          onClick={this._resume}
        >
          {trans.__('Resume')}
        </button>
      </>
    );
  }

  private get _kernel() {
    return this._states.get(kernelIdOf(this._panel) ?? '');
  }
}
