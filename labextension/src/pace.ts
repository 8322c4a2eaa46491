// How fast an operation is, from what has been told of its stage.

import type { IOperation } from './protocol';

export class Pace {
  /** Bytes a second, and the seconds that the stage still takes; null as long as that is not known. */
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

  /** What was told first of the stage. */
  private _first: {
    operation_id: string;
    stage: string;
    done_bytes: number;
    seconds: number;
  } | null = null;
}
