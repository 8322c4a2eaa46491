// The badge that shows whether a snapshot is in a remote, only in a remote, or being uploaded.

import * as React from 'react';

import { uploadLabel, uploadsCaption, weightiest } from './remote-texts';
import type { SnapshotView } from '../shared/records';
import { trans } from '../shared/translation';

export function UploadBadge(props: {
  snapshot: SnapshotView;
}): JSX.Element | null {
  const { snapshot } = props;
  const shown = weightiest(snapshot.uploads);
  const isRemote = snapshot.remote_only !== null;
  if (shown === null && !isRemote) {
    return null;
  }
  return (
    <span
      className="jp-GpuCkptCause"
      data-upload={isRemote ? 'remote' : shown?.state}
      title={uploadsCaption(snapshot)}
    >
      {isRemote || shown === null
        ? trans.__('not on this disk')
        : uploadLabel(shown)}
    </span>
  );
}
