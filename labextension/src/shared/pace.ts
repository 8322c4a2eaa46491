// The speed of an operation, from the progress of its current stage.

import type { IOperation } from './records';

export class Pace {
  /** Return the bytes per second and the seconds until the end of the stage; null while they are not known. */
  of({
    operation_id,
    progress
  }: IOperation): { rate: number; left: number | null } | null {
    const { stage, done_bytes, total_bytes, seconds } = progress;
    const first = this._first;
    if (first?.operation_id !== operation_id || first.stage !== stage) {
      this._first = { operation_id, stage, done_bytes, seconds };
      return null;
    }
    const rate = (done_bytes - first.done_bytes) / (seconds - first.seconds);
    return rate > 0 && Number.isFinite(rate)
      ? { rate, left: total_bytes ? (total_bytes - done_bytes) / rate : null }
      : null;
  }

  /** The first known progress of the stage. */
  private _first: {
    operation_id: string;
    stage: string;
    done_bytes: number;
    seconds: number;
  } | null = null;
}
