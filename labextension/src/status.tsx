// The item in the status bar: the operation in flight, how far it is and how fast. A press opens the panel.

import { ReactWidget } from '@jupyterlab/apputils';
import { ProgressBar, TextItem } from '@jupyterlab/statusbar';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';
import * as React from 'react';

import { formatBytes } from './format';
import type { IKernel, IOperation } from './protocol';
import { kernelName, percentOf, progressText, startedText } from './texts';
import type { IKernelStates } from './tokens';

/** The width of the bar in pixels. */
const WIDTH = 80;

export class OperationStatus extends ReactWidget {
  constructor(
    private readonly _states: IKernelStates,
    private readonly _openPanel: () => void,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-GpuCkptStatus');
    _states.changed.connect(this._follow, this);
  }

  /** Whether there is anything to show. */
  isActive(): boolean {
    return this._busy.length > 0;
  }

  /** Emitted when that may have changed. */
  get activeChanged(): ISignal<this, void> {
    return this._activeChanged;
  }

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
    const trans = this._trans;
    const started = startedText(
      operation.kind,
      kernelName(kernel, trans),
      trans
    );
    const others = this._busy.length - 1;
    const source = [
      started,
      progressText(operation.progress),
      this._rate(operation),
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

  /** How fast this stage goes on, from what has been told of it. */
  private _rate({ operation_id, progress }: IOperation): string {
    const { stage, done_bytes, seconds } = progress;
    const first = this._first;
    if (first?.operation_id !== operation_id || first.stage !== stage) {
      this._first = { operation_id, stage, done_bytes, seconds };
      return '';
    }
    const passed = seconds - first.seconds;
    const done = done_bytes - first.done_bytes;
    return passed > 0 && done > 0
      ? this._trans.__('%1/s', formatBytes(done / passed))
      : '';
  }

  private _follow(): void {
    this._busy = this._states.all().filter(({ operation }) => operation);
    this._activeChanged.emit();
    this.update();
  }

  private _busy: IKernel[] = [];
  /** What was told first of the stage that is shown. */
  private _first: {
    operation_id: string;
    stage: string;
    done_bytes: number;
    seconds: number;
  } | null = null;
  private readonly _activeChanged = new Signal<this, void>(this);
}
