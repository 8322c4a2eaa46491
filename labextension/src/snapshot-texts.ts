// Everything that is said to the user about snapshots and their store. Pure functions.

import type { TranslationBundle } from '@jupyterlab/translation';

import {
  formatBytes,
  formatMoment,
  formatSeconds,
  formatShare
} from './format';
import type {
  Cause,
  IChangedFile,
  ISnapshot,
  IStore,
  IVariable,
  IVerification
} from './protocol';

/** The name of a snapshot: what its user gave it, else when it was taken. */
export function snapshotTitle(snapshot: ISnapshot): string {
  return snapshot.title || formatMoment(snapshot.created);
}

/** Why a snapshot was taken, in a word. */
export function causeLabel(cause: Cause, trans: TranslationBundle): string {
  const labels: Record<Cause, string> = {
    manual: trans.__('manual'),
    idle: trans.__('idle'),
    shutdown: trans.__('shutdown'),
    reclaim: trans.__('reclaim'),
    autosave: trans.__('autosave'),
    rollback: trans.__('before a rollback'),
    restart: trans.__('before a restart')
  };
  return labels[cause] ?? cause;
}

/** Why a snapshot was taken, in a sentence. */
export function causeCaption(cause: Cause, trans: TranslationBundle): string {
  const captions: Record<Cause, string> = {
    manual: trans.__('Somebody asked for it.'),
    idle: trans.__('Its kernel was idle and was suspended.'),
    shutdown: trans.__('The server was stopped.'),
    reclaim: trans.__('The machine was reclaimed.'),
    autosave: trans.__('It is one of the periodic saves.'),
    rollback: trans.__('Its kernel was about to go back to an older snapshot.'),
    restart: trans.__('Its kernel was about to be restarted.')
  };
  return captions[cause] ?? '';
}

/** What a snapshot takes of the store: "120 MB, 8 MB of it new". */
export function sizeText(snapshot: ISnapshot, trans: TranslationBundle) {
  return trans.__(
    '%1 stored, %2 of it new, %3 shared with older snapshots',
    formatBytes(snapshot.stored_bytes),
    formatBytes(snapshot.new_bytes),
    formatBytes(Math.max(0, snapshot.stored_bytes - snapshot.new_bytes))
  );
}

/** A variable in a line: "df: DataFrame (100, 3), 12 MB". */
export function variableText(variable: IVariable): string {
  const value = [variable.kind, variable.summary].filter(Boolean).join(' ');
  return `${variable.name}: ${value}, ${formatBytes(variable.bytes)}`;
}

/** A file that changed since a snapshot. */
export function changedFileText(
  file: IChangedFile,
  trans: TranslationBundle
): string {
  switch (file.change) {
    case 'removed':
      return trans.__('%1 is gone', file.path);
    case 'smaller':
      return trans.__(
        '%1 is smaller than it was: %2, was %3',
        file.path,
        formatBytes(file.length_now ?? 0),
        formatBytes(file.length_then ?? 0)
      );
    default:
      return trans.__('%1 changed at %2', file.path, formatMoment(file.mtime));
  }
}

/** What a verification found. */
export function verifiedText(
  name: string,
  found: IVerification,
  trans: TranslationBundle
): string {
  return found.ok
    ? trans.__(
        '%1 is intact: %2 read in %3',
        name,
        formatBytes(found.checked_bytes),
        formatSeconds(found.seconds)
      )
    : trans.__('%1 is damaged and cannot be resumed.', name);
}

/** How much sharing and compression save, in a line each. */
export function savingTexts(store: IStore, trans: TranslationBundle) {
  const { raw_bytes, unique_bytes, stored_bytes } = store;
  return raw_bytes === 0
    ? []
    : [
        trans.__(
          'Sharing saves %1: %2 of memory, each part kept once, are %3.',
          formatShare(raw_bytes - unique_bytes, raw_bytes),
          formatBytes(raw_bytes),
          formatBytes(unique_bytes)
        ),
        trans.__(
          'Compression saves %1: these are stored as %2.',
          formatShare(unique_bytes - stored_bytes, unique_bytes),
          formatBytes(stored_bytes)
        )
      ];
}
