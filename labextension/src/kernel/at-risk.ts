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

/** Return the sentences about that. */
export function riskText(
  { seconds, isLate }: IAtRisk,
  kernel: KernelView,
  snapshots: readonly SnapshotView[]
): string {
  if (seconds === 0) {
    return trans.__('Nothing would be lost with this machine.');
  }
  const interval = formatSeconds(kernel.autosave_seconds);
  if (isLate) {
    const lost =
      seconds === null
        ? trans.__('All of it would be lost with this machine')
        : trans.__(
            'The last %1 would be lost with this machine',
            formatSeconds(seconds)
          );
    const sentences = [
      trans.__('%1, although it is saved every %2.', lost, interval)
    ];
    const [newest] = snapshots;
    const error = newest?.uploads.find(({ error }) => error)?.error;
    if (error) {
      sentences.push(...explain(error));
    }
    return sentences.join(' ');
  }
  if (seconds === null) {
    return trans.__(
      'All of it would be lost with this machine: no remote has it yet.'
    );
  }
  return kernel.autosave_seconds > 0
    ? trans.__(
        'The last %1 would be lost with this machine, at most about %2.',
        formatSeconds(seconds),
        interval
      )
    : trans.__(
        'At most the last %1 would be lost with this machine.',
        formatSeconds(seconds)
      );
}
