// What would be lost of a kernel with this machine and its disk, as far as remotes have its snapshots. Pure functions.

import { formatSeconds } from '../shared/format';
import type { KernelView, SnapshotView } from '../shared/records';
import { explain } from '../shared/texts';
import { trans } from '../shared/translation';

/** A periodic save is late when twice its interval has passed, and this time for the save and its upload, in seconds. */
const GRACE = 30;

/** The states of kernels without a process. */
const ASLEEP: readonly string[] = ['suspended', 'lost'];

/** The work that would be lost: of the last `seconds`; null: all of it. `isLate`: periodic saves should have saved it. */
export interface IAtRisk {
  seconds: number | null;
  isLate: boolean;
}

/**
 * Return what would be lost of a kernel; null where no snapshot of it goes to a remote.
 *
 * @param snapshots - those of this kernel, newest first.
 * @param now - in seconds since the epoch, as the server's times.
 */
export function atRisk(
  kernel: KernelView,
  snapshots: readonly SnapshotView[],
  now: number
): IAtRisk | null {
  if (!snapshots.some(({ uploads }) => uploads.length > 0)) {
    return null;
  }
  const interval = kernel.autosave_seconds;
  const there = snapshots.find(({ uploads }) =>
    uploads.some(({ state }) => state === 'uploaded')
  );
  const runs = !ASLEEP.includes(kernel.state);
  // Without periodic saves nobody looks for changes, so a kernel that runs may have changed all the time.
  const hasChanged = runs && (kernel.changed_at !== null || interval === 0);
  const isLate = (seconds: number) =>
    runs && interval > 0 && seconds > 2 * interval + GRACE;
  if (there === undefined) {
    const since = hasChanged ? now - (kernel.changed_at ?? now) : 0;
    return { seconds: null, isLate: isLate(since) };
  }
  const [newest] = snapshots;
  const until = hasChanged ? now : newest.created;
  const since =
    there === newest && hasChanged
      ? (kernel.changed_at ?? there.created)
      : there.created;
  const seconds = Math.max(0, until - since);
  return { seconds, isLate: isLate(seconds) };
}

/** Return what a kernel that has changed would lose if its process ended, in a sentence; empty if it has not. */
export function unsavedText(kernel: KernelView, now: number): string {
  if (ASLEEP.includes(kernel.state) || kernel.changed_at === null) {
    return '';
  }
  return trans.__(
    'If this kernel ended now, you would lose the last %1.',
    formatSeconds(Math.max(0, now - kernel.changed_at))
  );
}

/** Return the sentences about what would be lost. */
export function riskText(
  { seconds, isLate }: IAtRisk,
  kernel: KernelView,
  snapshots: readonly SnapshotView[]
): string {
  if (seconds === 0) {
    return trans.__('If this machine vanished now, you would lose nothing.');
  }
  const interval = formatSeconds(kernel.autosave_seconds);
  const lost =
    seconds === null
      ? trans.__('all of it')
      : trans.__('the last %1', formatSeconds(seconds));
  if (isLate) {
    const text = trans.__(
      'If this machine vanished now, you would lose %1, although it is saved every %2.',
      lost,
      interval
    );
    const error = snapshots[0]?.uploads.find(({ error }) => error)?.error;
    return [text, ...(error ? explain(error) : [])].join(' ');
  }
  if (seconds === null) {
    return trans.__(
      'If this machine vanished now, you would lose all of it: no remote has it yet.'
    );
  }
  return kernel.autosave_seconds > 0
    ? trans.__(
        'If this machine vanished now, you would lose %1; it is saved about every %2.',
        lost,
        interval
      )
    : trans.__(
        'If this machine vanished now, you would lose %1 at most.',
        lost
      );
}
