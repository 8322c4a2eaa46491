// All texts for users about snapshots and their store. Pure functions.

import {
  formatBytes,
  formatInstant,
  formatMoment,
  formatSeconds
} from '../shared/format';
import type {
  Cause,
  FileChange,
  RetentionPolicy,
  SnapshotView,
  StoreView,
  Variable,
  Verification
} from '../shared/records';
import { trans } from '../shared/translation';

type SnapshotNames = Pick<
  SnapshotView,
  'title' | 'created' | 'cell' | 'in_cell'
>;

/** Return the name of a snapshot: its title, else the last cell that had begun and the time: "After [5], 9:56:12 AM". */
export function snapshotTitle({
  title,
  created,
  cell,
  in_cell
}: SnapshotNames): string {
  const time = formatInstant(created);
  if (title || !cell) {
    return title || time;
  }
  return in_cell
    ? trans.__('During [%1], %2', cell, time)
    : trans.__('After [%1], %2', cell, time);
}

/** Return the reason for taking a snapshot, in a word. */
export function causeLabel({
  cause,
  reason
}: Pick<SnapshotView, 'cause' | 'reason'>): string {
  const labels: Record<Cause, string> = {
    manual: reason === 'suspend' ? trans.__('suspended') : trans.__('saved'),
    idle: trans.__('idle'),
    memory: trans.__('memory was short'),
    shutdown: trans.__('server stopped'),
    reclaim: trans.__('machine reclaimed'),
    autosave: trans.__('autosave'),
    rollback: trans.__('before a restore'),
    restart: trans.__('before a restart'),
    tool:
      reason === 'suspend'
        ? trans.__('suspended by an AI agent')
        : trans.__('saved by an AI agent')
  };
  return labels[cause];
}

/** Return the reason for taking a snapshot, in a sentence. */
export function causeCaption({
  cause,
  reason
}: Pick<SnapshotView, 'cause' | 'reason'>): string {
  const captions: Record<Cause, string> = {
    manual:
      reason === 'suspend'
        ? trans.__('Suspended by you')
        : trans.__('Saved by you'),
    idle: trans.__('Suspended because the kernel was idle'),
    memory: trans.__(
      'Suspended because memory was short and the kernel was idle'
    ),
    shutdown: trans.__('Suspended because the server stopped'),
    reclaim: trans.__('Suspended because the machine was reclaimed'),
    autosave: trans.__('Saved automatically'),
    rollback: trans.__('Saved before another snapshot was restored'),
    restart: trans.__('Saved before the kernel was restarted'),
    tool:
      reason === 'suspend'
        ? trans.__('Suspended by an AI agent, or before it restored a snapshot')
        : trans.__('Saved by an AI agent')
  };
  return captions[cause];
}

/** Return a sentence about how long something can be undone. */
export function undoText(seconds: number): string {
  return seconds > 0
    ? trans._n(
        'You can undo this for %1 second.',
        'You can undo this for %1 seconds.',
        seconds
      )
    : trans.__('This cannot be undone.');
}

/** Return a text about a snapshot's disk use: "120 MB on disk (8 MB new)". */
export function sizeText(snapshot: SnapshotView) {
  return trans.__(
    '%1 on disk (%2 new)',
    formatBytes(snapshot.stored_bytes),
    formatBytes(snapshot.new_bytes)
  );
}

/** Return the line about a variable: "df: DataFrame (100, 3), 12 MB". */
export function variableText(variable: Variable): string {
  const value = [variable.kind, variable.summary].filter(Boolean).join(' ');
  const size = variable.bytes > 0 ? formatBytes(variable.bytes) : '';
  return [`${variable.name}: ${value}`, size].filter(Boolean).join(', ');
}

/** Return the line about a file that changed since a snapshot. */
export function changedFileText(file: FileChange): string {
  switch (file.change) {
    case 'removed':
      return trans.__('%1 was deleted', file.path);
    case 'missing':
      return trans.__(
        '%1, which the kernel reads, was deleted. Reading it may end the kernel.',
        file.path
      );
    case 'smaller':
    case 'too_short': {
      const lengths = [file.length_now, file.length_then].map(length =>
        formatBytes(length ?? 0)
      );
      return file.change === 'smaller'
        ? trans.__('%1 is smaller: %2, was %3', file.path, ...lengths)
        : trans.__(
            '%1 is shorter than the kernel needs: %2, was %3. Reading it may end the kernel.',
            file.path,
            ...lengths
          );
    }
    case 'in_transaction':
      return trans.__(
        '%1 changed, and the kernel is in the middle of a transaction: it may damage the database.',
        file.path
      );
    default:
      return trans.__('%1 changed at %2', file.path, formatMoment(file.mtime));
  }
}

/** Return a text about the result of a verification. */
export function verifiedText(name: string, found: Verification): string {
  return found.ok
    ? trans.__(
        '%1 is intact: %2 checked in %3',
        name,
        formatBytes(found.checked_bytes),
        formatSeconds(found.seconds)
      )
    : trans.__('%1 is damaged and cannot be restored.', name);
}

/** Return a line about deduplication and a line about compression. */
export function savingTexts(store: StoreView) {
  const { raw_bytes, unique_bytes, stored_bytes } = store;
  // A store keeps chunks of deleted snapshots for a while, so that it may have more than its snapshots.
  return [
    raw_bytes > unique_bytes
      ? trans.__(
          'Deduplication: %1 → %2',
          formatBytes(raw_bytes),
          formatBytes(unique_bytes)
        )
      : '',
    unique_bytes > 0
      ? trans.__(
          'Compression: %1 → %2',
          formatBytes(unique_bytes),
          formatBytes(stored_bytes)
        )
      : ''
  ].filter(Boolean);
}

/** Return the sentences that say when snapshots are deleted without a request. */
export function expiryTexts({
  keep_last,
  keep_within_seconds,
  keep_suspends,
  keep_tool_saves,
  max_bytes
}: RetentionPolicy): string[] {
  const within = formatSeconds(keep_within_seconds);
  const texts = [
    keep_last > 0 && keep_within_seconds > 0
      ? trans.__(
          'An automatic snapshot expires when its kernel has %1 newer ones and it is %2 older than the latest.',
          keep_last,
          within
        )
      : keep_last > 0
        ? trans._n(
            'An automatic snapshot expires when its kernel has a newer one.',
            'An automatic snapshot expires when its kernel has %1 newer ones.',
            keep_last
          )
        : keep_within_seconds > 0
          ? trans.__(
              'An automatic snapshot expires when it is %1 older than the latest of its kernel.',
              within
            )
          : trans.__('Automatic snapshots do not expire.')
  ];
  if (keep_suspends > 0) {
    texts.push(
      trans.__(
        'The last %1 suspends by you are kept for each kernel.',
        keep_suspends
      )
    );
  }
  if (keep_tool_saves > 0) {
    texts.push(
      trans.__(
        'The last %1 snapshots by AI agents are kept for each kernel and its branches.',
        keep_tool_saves
      )
    );
  }
  if (max_bytes > 0) {
    texts.push(
      trans.__(
        'If all snapshots take more than %1, the oldest automatic ones are deleted.',
        formatBytes(max_bytes)
      )
    );
  }
  return texts;
}

/** Suggest the name of a template for a notebook: kernelspecs have names of small letters, digits, dots and hyphens. */
export function templateName(notebook: string): string {
  const plain = notebook
    .replace(/\.ipynb$/, '')
    .toLowerCase()
    .replace(/[^a-z0-9._-]+/g, '-')
    .replace(/^[^a-z0-9]+|-+$/g, '');
  return `${plain || 'notebook'}-ready`;
}
