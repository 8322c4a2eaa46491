// The dialogs about a snapshot: the question before it is restored, its details, its note, its variables and those of now.

import { Dialog } from '@jupyterlab/apputils';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { uploadsCaption } from '../remote/remote-texts';
import { ask, Body, Lines, show, Table } from '../shared/dialogs';
import {
  formatAge,
  formatBytes,
  formatMoment,
  formatSeconds
} from '../shared/format';
import type {
  Changes,
  Comparison,
  IStoredNotebook,
  SnapshotView,
  Variable
} from '../shared/records';
import { trans } from '../shared/translation';
import {
  causeCaption,
  changedFileText,
  sizeText,
  snapshotTitle
} from './snapshot-texts';

/**
 * Ask whether to restore a snapshot, with its cells and outputs unless the user does not want that, and with the files of its folder if the user
 * wants that. Name the open files that have changed. `stored`: the notebook in the snapshot; `differences`: how the open
 * notebook's cells would change; empty if they would not.
 */
export async function mayGoBack(
  snapshot: SnapshotView,
  { files, obstacles }: Changes,
  stored: IStoredNotebook | null,
  differences: string
): Promise<{
  goBack: boolean;
  withCells: boolean;
  withFiles: boolean;
  force: boolean;
}> {
  let withFiles = restoresFiles(snapshot);
  const warns = files.some(({ change }) =>
    ['missing', 'too_short', 'in_transaction'].includes(change)
  );
  const isRefused = obstacles.length > 0;
  const { button, isChecked } = await ask(
    trans.__('Restore %1?', snapshotTitle(snapshot)),
    <div className="jp-GpuCkptDialog">
      {isRefused ? (
        <>
          <p role="alert">
            {trans.__('This snapshot cannot be restored now:')}
          </p>
          <Lines texts={obstacles} />
        </>
      ) : null}
      <p>
        {trans.__(
          'The kernel’s variables return to what they were %1. The current state is saved first.',
          formatAge(snapshot.created)
        )}
      </p>
      <p>
        {differences
          ? trans.__(
              'Cells and outputs can be restored too, as the file was %1: %2 You can undo that in the notebook.',
              formatAge(stored?.modified ?? 0),
              differences
            )
          : stored?.notebook
            ? trans.__('Cells and outputs are the same as then.')
            : trans.__('Cells and outputs do not change.')}
      </p>
      {files.length > 0 ? (
        <>
          <p>
            {trans._n(
              'This file changed since the snapshot and will not be restored:',
              'These files changed since the snapshot and will not be restored:',
              files.length
            )}
          </p>
          <Lines texts={files.map(changedFileText)} />
        </>
      ) : null}
      {snapshot.has_files && !isRefused ? (
        <label>
          <input
            type="checkbox"
            name="files"
            defaultChecked={withFiles}
            onChange={event => {
              withFiles = event.target.checked;
            }}
          />
          {trans.__(
            'Restore the files of its folder too. The current ones are saved first.'
          )}
        </label>
      ) : null}
    </div>,
    warns ? trans.__('Restore Anyway') : trans.__('Restore'),
    {
      warns,
      checkbox:
        differences && !isRefused
          ? { label: trans.__('Restore cells and outputs too'), checked: true }
          : null,
      ...(isRefused && {
        buttons: [Dialog.cancelButton({ label: trans.__('Close') })]
      })
    }
  );
  return {
    goBack: button.accept,
    withCells: isChecked ?? false,
    withFiles,
    force: warns
  };
}

/** Return whether the files of a snapshot are restored with it unless the user says otherwise: an agent's tools change them as well. */
export function restoresFiles({ cause, has_files }: SnapshotView): boolean {
  return has_files && cause === 'tool';
}

/** Show the details of a snapshot. */
export function showSnapshot(snapshot: SnapshotView): Promise<void> {
  const facts: [string, string][] = [
    [trans.__('Taken'), formatMoment(snapshot.created)],
    [trans.__('Reason'), causeCaption(snapshot)],
    [trans.__('Notebook'), snapshot.name],
    [trans.__('Note'), snapshot.note],
    [trans.__('Memory'), formatBytes(snapshot.raw_bytes)],
    [
      trans.__('GPU memory'),
      snapshot.gpu_bytes > 0 ? formatBytes(snapshot.gpu_bytes) : ''
    ],
    [trans.__('Disk use'), sizeText(snapshot)],
    [
      trans.__('Duration'),
      trans.__(
        '%1 (kernel paused %2)',
        formatSeconds(snapshot.seconds),
        formatSeconds(snapshot.frozen_seconds)
      )
    ],
    [trans.__('Machine'), snapshot.host_name],
    [trans.__('Remotes'), uploadsCaption(snapshot)],
    [trans.__('ID'), snapshot.snapshot_id]
  ];
  return show(
    snapshotTitle(snapshot),
    <div className="jp-GpuCkptDialog">
      <dl className="jp-GpuCkptFacts">
        {facts
          .filter(([, value]) => value)
          .map(([name, value]) => (
            <React.Fragment key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </React.Fragment>
          ))}
      </dl>
      {snapshot.variables.length > 0 ? (
        <Table
          caption={trans.__('Largest variables')}
          head={[
            trans.__('Name'),
            trans.__('Type'),
            trans.__('Value'),
            trans.__('Size')
          ]}
          rows={snapshot.variables.map(({ name, kind, summary, bytes }) => [
            name,
            kind,
            summary,
            formatBytes(bytes)
          ])}
        />
      ) : null}
    </div>
  );
}

/** Compare a snapshot's variables with those of its kernel now. */
export function showComparison(
  snapshot: SnapshotView,
  { changed, added, removed, unknown, same }: Comparison
): Promise<void> {
  const rows: [string, ...React.ReactNode[]][] = [
    ...changed.map(({ name, then, now }) =>
      row(name, trans.__('changed'), then, now)
    ),
    ...added.map(now => row(now.name, trans.__('new'), null, now)),
    ...removed.map(then => row(then.name, trans.__('deleted'), then, null))
  ];
  return show(
    trans.__('Variables: %1 and now', snapshotTitle(snapshot)),
    <div className="jp-GpuCkptDialog">
      {rows.length > 0 ? (
        <Table
          head={[
            trans.__('Name'),
            trans.__('Change'),
            trans.__('Then'),
            trans.__('Now')
          ]}
          rows={rows}
        />
      ) : (
        <p>{trans.__('No variables changed.')}</p>
      )}
      <p>{trans._n('%1 unchanged', '%1 unchanged', same)}</p>
      {unknown.length > 0 ? (
        <p>
          {trans.__(
            'Could not be compared, because they are too large or of a type that is never examined: %1',
            unknown.join(', ')
          )}
        </p>
      ) : null}
    </div>
  );
}

function row(
  name: string,
  what: string,
  ...values: (Variable | null)[]
): [string, ...React.ReactNode[]] {
  const cells = values.map(value =>
    value ? (
      <>
        {value.kind} {value.summary}
        <span className="jp-GpuCkptTable-size">
          {' '}
          {formatBytes(value.bytes)}
        </span>
      </>
    ) : (
      '–'
    )
  );
  return [name, what, ...cells];
}

/** The most characters of a note. */
const LONGEST = 10000;

/** Let the user edit a snapshot's note and return it; null if they cancel. */
export async function editNote(snapshot: SnapshotView): Promise<string | null> {
  const { button, value } = await ask(
    trans.__('Note on %1', snapshotTitle(snapshot)),
    new NoteEditor(snapshot.note, write => (
      <textarea
        className="jp-mod-styled"
        aria-label={trans.__('Note')}
        rows={6}
        maxLength={LONGEST}
        defaultValue={snapshot.note}
        onChange={event => write(event.target.value)}
      />
    )),
    trans.__('Save'),
    { focusNodeSelector: 'textarea' }
  );
  return button.accept ? (value ?? '').trim() : null;
}

class NoteEditor extends Body<string> {
  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.addClass('jp-GpuCkptNote');
    window.addEventListener('keydown', this._keepEnter, true);
  }

  protected onBeforeDetach(message: Message): void {
    window.removeEventListener('keydown', this._keepEnter, true);
    super.onBeforeDetach(message);
  }

  /** Keeps the dialog from handling Enter, which must start a new line. */
  private readonly _keepEnter = (event: KeyboardEvent) => {
    const target = event.target as Node | null;
    if (event.key === 'Enter' && !event.ctrlKey && this.node.contains(target)) {
      event.stopPropagation();
    }
  };
}
