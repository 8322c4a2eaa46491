// The dialog before a kernel is resumed although its files changed.

import { Dialog, showDialog } from '@jupyterlab/apputils';
import * as React from 'react';

import type { GpuCkptError } from './api';
import { trans } from './translation';

/** Ask whether to resume a kernel although its files changed. `error`: the server's refusal, which names them. */
export async function mayResumeAnyway(
  name: string,
  error: GpuCkptError
): Promise<boolean> {
  const { button } = await showDialog({
    title: trans.__('Resume %1 although files changed?', name),
    body: (
      <div className="jp-GpuCkptDialog">
        <p role="alert">{error.message}</p>
        <p>
          {trans.__(
            'Put the files back as they were, then resume the kernel. If you resume it anyway, using them may end the kernel, give wrong results or damage a database; the snapshot stays.'
          )}
        </p>
        <p>
          {trans.__(
            'Files that c.GpuCkptProvisioner.keep_files names travel with snapshots.'
          )}
        </p>
      </div>
    ),
    buttons: [
      Dialog.cancelButton(),
      Dialog.warnButton({ label: trans.__('Resume Anyway') })
    ]
  });
  return button.accept;
}
