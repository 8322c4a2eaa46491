// The question before a kernel goes back to an older snapshot.

import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { formatAge } from './format';
import type { IChanges, ISnapshot } from './protocol';
import { changedFileText, snapshotTitle } from './snapshot-texts';

/** Ask, and name what is not as it was: a snapshot holds memory and no files. */
export async function mayGoBack(
  snapshot: ISnapshot,
  { files, obstacles }: IChanges,
  trans: TranslationBundle
): Promise<boolean> {
  const { button } = await showDialog({
    title: trans.__('Go back to %1?', snapshotTitle(snapshot)),
    body: (
      <div className="jp-GpuCkptDialog">
        {obstacles.length > 0 ? (
          <>
            <p role="alert">
              {trans.__('It cannot be resumed here as things are:')}
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
            'The kernel’s memory becomes what it was %1. What it is now is kept as a snapshot first.',
            formatAge(snapshot.created)
          )}
        </p>
        {files.length > 0 ? (
          <>
            <p>
              {trans._n(
                'A file that the kernel writes to is not as it was, and stays as it is:',
                '%1 files that the kernel writes to are not as they were, and stay as they are:',
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
            Dialog.okButton({ label: trans.__('Go Back') })
          ]
  });
  return button.accept;
}
