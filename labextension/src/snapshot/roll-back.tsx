// The dialog before a snapshot is restored.

import { Dialog, showDialog } from '@jupyterlab/apputils';
import * as React from 'react';

import { formatAge } from '../shared/format';
import type { Changes, SnapshotView, IStoredNotebook } from '../shared/records';
import { changedFileText, snapshotTitle } from './snapshot-texts';
import { trans } from '../shared/translation';

/**
 * Ask whether to restore a snapshot, with its cells and outputs unless the user does not want that. Name the files that have changed: a snapshot
 * contains memory and the notebook, not files. `stored`: the notebook in the snapshot; `differences`: how the open
 * notebook's cells would change; empty if they would not.
 */
export async function mayGoBack(
  snapshot: SnapshotView,
  { files, obstacles }: Changes,
  stored: IStoredNotebook | null,
  differences: string
): Promise<{ goBack: boolean; withCells: boolean; force: boolean }> {
  const force = files.some(({ change }) =>
    ['missing', 'too_short', 'in_transaction'].includes(change)
  );
  const { button, isChecked } = await showDialog({
    title: trans.__('Restore %1?', snapshotTitle(snapshot)),
    body: (
      <div className="jp-GpuCkptDialog">
        {obstacles.length > 0 ? (
          <>
            <p role="alert">
              {trans.__('This snapshot cannot be restored now:')}
            </p>
            <ul className="jp-GpuCkptDialog-files">
              {obstacles.map(obstacle => (
                <li key={obstacle}>{obstacle}</li>
              ))}
            </ul>
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
            <ul className="jp-GpuCkptDialog-files">
              {files.map(file => (
                <li key={file.path}>{changedFileText(file)}</li>
              ))}
            </ul>
          </>
        ) : null}
      </div>
    ),
    checkbox:
      differences && obstacles.length === 0
        ? {
            label: trans.__('Restore cells and outputs too'),
            checked: true
          }
        : null,
    buttons:
      obstacles.length > 0
        ? [Dialog.cancelButton({ label: trans.__('Close') })]
        : [
            Dialog.cancelButton(),
            force
              ? Dialog.warnButton({ label: trans.__('Restore Anyway') })
              : Dialog.okButton({ label: trans.__('Restore') })
          ]
  });
  return { goBack: button.accept, withCells: isChecked ?? false, force };
}
