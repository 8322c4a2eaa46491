// The dialog before a snapshot is restored.

import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { formatAge } from './format';
import type { IChanges, ISnapshot } from './protocol';
import { changedFileText, snapshotTitle } from './snapshot-texts';

/** Ask whether to restore a snapshot, and name the files that have changed: a snapshot contains memory, not files. */
export async function mayGoBack(
  snapshot: ISnapshot,
  { files, obstacles }: IChanges,
  trans: TranslationBundle
): Promise<boolean> {
  const { button } = await showDialog({
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
            'The kernel’s variables return to what they were %1. The current state is saved first. Cells and outputs do not change.',
            formatAge(snapshot.created)
          )}
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
    buttons:
      obstacles.length > 0
        ? [Dialog.cancelButton({ label: trans.__('Close') })]
        : [
            Dialog.cancelButton(),
            Dialog.okButton({ label: trans.__('Restore') })
          ]
  });
  return button.accept;
}
