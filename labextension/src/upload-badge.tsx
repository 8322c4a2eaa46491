// Whether a snapshot is in a remote, or on its way.

import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IUpload } from './far-protocol';
import { uploadCaption, uploadLabel, weightiest } from './far-texts';

export function UploadBadge(props: {
  uploads: IUpload[];
  trans: TranslationBundle;
}): JSX.Element | null {
  const { uploads, trans } = props;
  const shown = weightiest(uploads);
  return shown === null ? null : (
    <span
      className="jp-GpuCkptCause"
      data-upload={shown.state}
      title={uploads.map(upload => uploadCaption(upload, trans)).join('\n')}
    >
      {uploadLabel(shown, trans)}
    </span>
  );
}
