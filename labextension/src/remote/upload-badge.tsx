// The badge that shows whether a snapshot is in a remote, only in a remote, or being uploaded.

import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { uploadLabel, uploadsCaption, weightiest } from './remote-texts';
import type { ISnapshot } from '../shared/records';

export function UploadBadge(props: {
  snapshot: ISnapshot;
  trans: TranslationBundle;
}): JSX.Element | null {
  const { snapshot, trans } = props;
  const shown = weightiest(snapshot.uploads);
  const isRemote = snapshot.remote_only !== null;
  if (shown === null && !isRemote) {
    return null;
  }
  return (
    <span
      className="jp-GpuCkptCause"
      data-upload={isRemote ? 'remote' : shown?.state}
      title={uploadsCaption(snapshot, trans)}
    >
      {isRemote || shown === null
        ? trans.__('not on this disk')
        : uploadLabel(shown, trans)}
    </span>
  );
}
