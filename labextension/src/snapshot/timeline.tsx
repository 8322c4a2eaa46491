// A kernel's snapshots, the newest first.

import * as React from 'react';

import { Age, CommandButton, MenuButton, useFirst } from '../shared/elements';
import { formatBytes } from '../shared/format';
import { branchIcon, pinIcon, resumeIcon } from '../shared/icons';
import type { SnapshotView, Variable } from '../shared/records';
import { openMenu } from '../shared/reason-menu';
import { isAtRemote } from '../shared/texts';
import type { IPanelContext } from '../shared/tokens';
import {
  isNeeded,
  isResumed,
  snapshotActions,
  snapshotCommandIds
} from './snapshot-commands';
import {
  causeCaption,
  causeLabel,
  sizeText,
  snapshotTitle,
  variableText
} from './snapshot-texts';
import {
  uploadLabel,
  uploadsCaption,
  weightiest
} from '../remote/remote-texts';
import { trans } from '../shared/translation';

/** The numbers of snapshots, and of a snapshot's variables, that are shown at first. */
const FIRST_SNAPSHOTS = 5;
const FIRST_VARIABLES = 4;

export function Timeline(props: {
  context: IPanelContext;
  label: string;
  snapshots: SnapshotView[];
}): JSX.Element {
  const { context, label, snapshots } = props;
  const [shown, more] = useFirst(snapshots, FIRST_SNAPSHOTS);
  if (snapshots.length === 0) {
    return (
      <p className="jp-GpuCkptSessions-none">{trans.__('No snapshots yet.')}</p>
    );
  }
  return (
    <>
      <ol className="jp-GpuCkptTimeline" aria-label={label}>
        {shown.map(snapshot => (
          <SnapshotCard
            key={snapshot.snapshot_id}
            context={context}
            snapshot={snapshot}
          />
        ))}
      </ol>
      {more}
    </>
  );
}

function SnapshotCard(props: {
  context: IPanelContext;
  snapshot: SnapshotView;
}): JSX.Element {
  const { context, snapshot } = props;
  const { states, commands } = context;
  const title = snapshotTitle(snapshot);
  const args = { snapshotId: snapshot.snapshot_id };
  const kernel = states.get(snapshot.kernel_id);
  const isHere = kernel?.snapshot_id === snapshot.snapshot_id;
  const showMenu = (anchor: Element) =>
    openMenu(
      commands,
      snapshotActions.map(action => snapshotCommandIds[action]),
      args,
      anchor
    );
  return (
    <li
      className="jp-GpuCkptSnapshot"
      data-snapshot={snapshot.snapshot_id}
      data-pinned={snapshot.pinned}
    >
      <div className="jp-GpuCkptSnapshot-head">
        <span className="jp-GpuCkptSnapshot-title" title={title}>
          {title}
        </span>
        {snapshot.pinned ? (
          <pinIcon.react
            tag="span"
            stylesheet="menuItem"
            title={trans.__('Pinned')}
          />
        ) : null}
        <MenuButton label={trans.__('More for %1', title)} open={showMenu} />
      </div>
      <div className="jp-GpuCkptSnapshot-facts">
        <Age time={snapshot.created} />
        <span>{formatBytes(snapshot.raw_bytes)}</span>
        {snapshot.gpu_bytes > 0 ? (
          <span>{trans.__('%1 GPU', formatBytes(snapshot.gpu_bytes))}</span>
        ) : null}
        <span className="jp-GpuCkptCause" title={causeCaption(snapshot)}>
          {causeLabel(snapshot)}
        </span>
        <UploadBadge snapshot={snapshot} />
        {isNeeded(snapshot, states) ? (
          <span className="jp-GpuCkptCause" data-needed>
            {kernel && isAtRemote(kernel)
              ? trans.__('moved from here')
              : trans.__('resumes from here')}
          </span>
        ) : isHere ? (
          <span
            className="jp-GpuCkptCause"
            title={trans.__('The kernel continues from this snapshot.')}
          >
            {trans.__('runs from here')}
          </span>
        ) : null}
      </div>
      <SharedBar snapshot={snapshot} text={sizeText(snapshot)} />
      {snapshot.note ? (
        <p className="jp-GpuCkptSnapshot-note">{snapshot.note}</p>
      ) : null}
      <Variables variables={snapshot.variables} />
      <div className="jp-GpuCkptActions">
        {isResumed(snapshot, states) ? null : (
          <CommandButton
            commands={commands}
            id={snapshotCommandIds.goBack}
            args={args}
            icon={resumeIcon}
            label={trans.__('Restore This Snapshot')}
            about={title}
          />
        )}
        <CommandButton
          commands={commands}
          id={snapshotCommandIds.branch}
          args={args}
          icon={branchIcon}
          label={trans.__('Branch')}
          about={title}
        />
      </div>
    </li>
  );
}

/** Draw the share of new bytes in a snapshot; it has the others in common with older snapshots. */
function SharedBar(props: { snapshot: SnapshotView; text: string }) {
  const { stored_bytes, new_bytes } = props.snapshot;
  if (stored_bytes === 0) {
    return null;
  }
  const share = Math.min(100, (100 * new_bytes) / stored_bytes);
  return (
    <div
      className="jp-GpuCkptShared"
      role="img"
      aria-label={props.text}
      title={props.text}
    >
      <span className="jp-GpuCkptShared-new" style={{ width: `${share}%` }} />
    </div>
  );
}

function Variables(props: { variables: Variable[] }) {
  if (props.variables.length === 0) {
    return null;
  }
  return (
    <ul className="jp-GpuCkptVariables">
      {props.variables.slice(0, FIRST_VARIABLES).map(variable => (
        <li key={variable.name} title={variableText(variable)}>
          <code>{variable.name}</code> {variable.kind}{' '}
          <span>{variable.bytes > 0 ? formatBytes(variable.bytes) : ''}</span>
        </li>
      ))}
    </ul>
  );
}

/** Draw whether a snapshot is in a remote, only in a remote, or being uploaded. */
function UploadBadge(props: { snapshot: SnapshotView }): JSX.Element | null {
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
