// The banner above every notebook about a notice: when this machine will go, and what happens to the kernels.

import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { FittedBanner } from '../shared/fitted-banner';
import type { MachineNotices } from './machine-notices';
import type { NoticeView } from '../shared/records';
import { trans } from '../shared/translation';

/** The interval at which the countdown is drawn, in milliseconds. */
const TICK = 1000;

export class NoticeBanner extends FittedBanner {
  constructor(private readonly _notices: MachineNotices) {
    super();
    this.addClass('jp-GpuCkptNotice');
    _notices.changed.connect(this._follow, this);
    this._follow();
  }

  dispose(): void {
    clearInterval(this._timer);
    this._notices.changed.disconnect(this._follow, this);
    super.dispose();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._follow();
  }

  protected render(): JSX.Element | null {
    const standing = this._notices.soonest;
    if (standing === null) {
      return null;
    }
    const left = this._notices.secondsLeft(standing);
    const [what, ...rest] = noticeTexts(standing.notice, left);
    return (
      <div ref={this.measure} className="jp-GpuCkptBanner-content">
        <span className="jp-GpuCkptBanner-text">
          {/* A screen reader would read every second aloud. */}
          <strong role="timer" aria-live="off">
            {what}
          </strong>{' '}
          <span role="status">{rest.join(' ')}</span>
        </span>
      </div>
    );
  }

  private _follow(): void {
    const standing = this._notices.soonest;
    clearInterval(this._timer);
    if (standing !== null && standing.endsAt !== null && !this.isDisposed) {
      this._timer = window.setInterval(() => this.update(), TICK);
    }
    this.setHidden(standing === null);
    this.update();
  }

  private _timer = 0;
}

/** Return the texts about a notice for users: when the machine will go, what happens to the kernels, and what will be lost. */
export function noticeTexts(
  notice: NoticeView,
  secondsLeft: number | null
): string[] {
  if (secondsLeft === null) {
    return [
      trans.__('This machine may be shut down soon.'),
      trans.__('Sessions are being saved and keep running.')
    ];
  }
  const texts = [
    secondsLeft > 0
      ? trans.__(
          'This machine will be shut down in %1.',
          countdown(secondsLeft)
        )
      : trans.__('This machine can be shut down at any moment.'),
    notice.is_due
      ? trans.__('Sessions are being suspended.')
      : notice.is_saving
        ? trans.__(
            'Sessions are being saved, and will be suspended shortly before that.'
          )
        : trans.__('Sessions will be suspended before that.')
  ];
  texts.push(
    notice.disk_survives
      ? trans.__('Its disk is kept.')
      : trans.__(
          'Its disk is lost: only what is uploaded to a remote survives.'
        )
  );
  return texts;
}

/** Format seconds as a clock does: "1:45", "2:03:10". */
export function countdown(seconds: number): string {
  const whole = Math.ceil(seconds);
  const parts = [Math.floor(whole / 60) % 60, whole % 60];
  const hours = Math.floor(whole / 3600);
  const [first, ...rest] = hours > 0 ? [hours, ...parts] : parts;
  return [first, ...rest.map(part => `${part}`.padStart(2, '0'))].join(':');
}
