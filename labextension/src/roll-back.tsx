// The dialog before a snapshot is restored.

import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { formatAge } from './format';
import type { IChanges, ISnapshot, IStoredNotebook } from './protocol';
import { changedFileText, snapshotTitle } from './snapshot-texts';
import type { ICell } from './stored-cells';
import { cellChanges, cellChangesText } from './stored-cells';

/**
 * Ask whether to restore a snapshot, with its cells and outputs if the user wants that. Name the files that have changed: a snapshot
 * contains memory and the notebook, not files. `stored`: the notebook in the snapshot; `now`: the cells of the open notebook.
 */
export async function mayGoBack(
  snapshot: ISnapshot,
  { files, obstacles }: IChanges,
  stored: IStoredNotebook | null,
  now: ICell[],
  trans: TranslationBundle
): Promise<{ goBack: boolean; withCells: boolean }> {
  const cells = stored?.notebook?.cells;
  const differences = cells
    ? cellChangesText(cellChanges(cells, now), trans)
    : '';
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
                'Cells and outputs can return too, to what was saved to the file %1: %2 You can undo that in the notebook.',
                formatAge(stored?.modified ?? 0),
                differences
              )
            : cells
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
                <li key={file.path}>{changedFileText(file, trans)}</li>
              ))}
            </ul>
          </>
        ) : null}
      </div>
    ),
    checkbox:
      differences && obstacles.length === 0
        ? { label: trans.__('Restore cells and outputs too') }
        : null,
    buttons:
      obstacles.length > 0
        ? [Dialog.cancelButton({ label: trans.__('Close') })]
        : [
            Dialog.cancelButton(),
            Dialog.okButton({ label: trans.__('Restore') })
          ]
  });
  return { goBack: button.accept, withCells: isChecked ?? false };
}
