// The dialog that a notification's button "Details" opens.

import { Dialog, showDialog } from '@jupyterlab/apputils';
import * as React from 'react';

import type { GpuCkptError } from './api';
import { trans } from './translation';

/** Show the dialog about the end of an operation: sentences, and the technical cause of an error or the end of a log. */
export async function showDetails(
  title: string,
  sentences: string[],
  error: GpuCkptError | null
): Promise<void> {
  await showDialog({
    title,
    body: (
      <div className="jp-GpuCkptDetails">
        {sentences.map(sentence => (
          <p key={sentence}>{sentence}</p>
        ))}
        {error?.details ? <pre tabIndex={0}>{error.details}</pre> : null}
        {error ? (
          <p className="jp-GpuCkptDetails-code">
            {trans.__('Error code: %1', error.code)}
          </p>
        ) : null}
      </div>
    ),
    buttons: [Dialog.okButton({ label: trans.__('Close') })]
  });
}
