// The dialog that a notification's button "Details" opens.

import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { GpuCkptError } from './api';

/** Show the dialog about the end of an operation: sentences, and the technical cause of an error or the end of a log. */
export async function showDetails(
  title: string,
  sentences: string[],
  error: GpuCkptError | null,
  trans: TranslationBundle
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
