// The item in the status bar: the operation in flight, its progress and its speed. A click opens the panel.

import { ReactWidget } from '@jupyterlab/apputils';
import { ProgressBar, TextItem } from '@jupyterlab/statusbar';
import { Signal } from '@lumino/signaling';
import * as React from 'react';

import { formatBytes } from '../shared/format';
import { Pace } from '../shared/pace';
import type { KernelView, IOperation } from '../shared/records';
import {
  kernelName,
  leftText,
  percentOf,
  progressText,
  startedText
} from '../shared/texts';
import type { IKernelStates } from '../shared/tokens';
import { trans } from '../shared/translation';

/** The width of the bar in pixels. */
const WIDTH = 80;

export class OperationStatus extends ReactWidget {
  constructor(
    private readonly _states: IKernelStates,
    private readonly _openPanel: () => void
  ) {
    super();
    this.addClass('jp-GpuCkptStatus');
    _states.changed.connect(this._follow, this);
  }

  /** Return whether there is an operation to show. */
  isActive(): boolean {
    return this._busy.length > 0;
  }

  /** A signal for possible changes of `isActive`. */
  readonly activeChanged = new Signal<this, void>(this);

  dispose(): void {
    this._states.changed.disconnect(this._follow, this);
    super.dispose();
  }

  protected render(): JSX.Element | null {
    const [kernel] = this._busy;
    const operation = kernel?.operation;
    if (!operation) {
      return null;
    }
    const started = startedText(operation.kind, kernelName(kernel));
    const others = this._busy.length - 1;
    const source = [
      started,
      progressText(operation.progress),
      this._pace(operation),
      others > 0 ? trans.__('(+%1)', others) : ''
    ];
    const percent = percentOf(operation.progress);
    const text = source.filter(Boolean).join(' ');
    return (
      <button
        type="button"
        className="jp-GpuCkptStatus-button"
        title={trans.__('Show the sessions')}
        onClick={this._openPanel}
      >
        {percent === null ? null : (
          <ProgressBar percentage={percent} width={WIDTH} />
        )}
        <TextItem source={text} />
      </button>
    );
  }

  /** Return a text about the speed of the current stage and the time until its end. */
  private _pace(operation: IOperation): string {
    const pace = this._known.of(operation);
    return pace
      ? [trans.__('%1/s', formatBytes(pace.rate)), leftText(pace.left)]
          .filter(Boolean)
          .join(' ')
      : '';
  }

  private _follow(): void {
    this._busy = this._states.all().filter(({ operation }) => operation);
    this.activeChanged.emit();
    this.update();
  }

  private _busy: KernelView[] = [];
  private readonly _known = new Pace();
}
