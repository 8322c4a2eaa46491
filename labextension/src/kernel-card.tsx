// A live kernel in the panel: its resources, its actions and its snapshots.

import { caretDownIcon, caretRightIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { atRisk, riskText } from './kernel/at-risk';
import { GpuCkptError } from './shared/api';
import { CommandButton, MenuButton } from './shared/elements';
import { actions, buttonKey, commandIds, icons } from './kernel/commands';
import type { KernelView, IOperation, SnapshotView } from './shared/records';
import { openMenu } from './shared/reason-menu';
import type { SessionsPanel } from './sessions-panel';
import { snapshotCommandIds } from './snapshot/snapshot-commands';
import { snapshotTitle } from './snapshot/snapshot-texts';
import {
  currentReason,
  isAtRemote,
  kernelName,
  movedTexts,
  percentOf,
  progressText,
  stateCaption,
  stateLabel,
  usageTexts
} from './shared/texts';
import { Timeline } from './snapshot/timeline';
import { trans } from './shared/translation';

/** The commands that have their own buttons. */
type Main = 'save' | 'suspend' | 'resume';

interface IProps {
  context: SessionsPanel.IContext;
  kernel: KernelView;
  snapshots: SnapshotView[];
  /** Those of the same notebook's other kernels, which have ended here or were fetched. */
  others: SnapshotView[];
  /** A new object for each request to show the kernel. */
  revealed: SessionsPanel.IRevealed | null;
}

export function KernelCard(props: IProps): JSX.Element {
  const { context, kernel, snapshots, others, revealed } = props;
  const { commands, openNotebook } = context;
  const [isOpen, setOpen] = React.useState(true);
  const card = React.useRef<HTMLLIElement>(null);
  React.useEffect(() => {
    if (revealed) {
      setOpen(true);
      card.current?.scrollIntoView({ block: 'nearest' });
      card.current?.querySelector('button')?.focus();
    }
  }, [revealed]);
  // Snapshots that are loaded later would scroll the card out of sight.
  const isLoaded = context.snapshots.list !== null;
  React.useEffect(() => {
    if (revealed) {
      card.current?.scrollIntoView({ block: 'nearest' });
    }
  }, [isLoaded]);

  const name = kernelName(kernel);
  const args = { kernelId: kernel.kernel_id };
  const showMenu = (anchor: Element) =>
    openMenu(
      commands,
      actions
        .filter(action => action !== 'history')
        .map(action => commandIds[action]),
      args,
      anchor
    );
  const parent = context.snapshots.list?.find(
    ({ snapshot_id }) => snapshot_id === kernel.parent_snapshot_id
  );
  const beforeTool = snapshots.find(
    ({ snapshot_id }) => snapshot_id === kernel.before_tool
  );
  const count = snapshots.length + others.length;
  const usage = usageTexts(kernel);
  const risk = atRisk(kernel, snapshots, Date.now() / 1000);
  const asleep = ['suspended', 'resuming', 'lost'].includes(kernel.state);
  const main: Main[] = asleep ? ['resume'] : ['save', 'suspend'];
  const labels: Record<Main, string> = {
    save: trans.__('Save'),
    suspend: trans.__('Suspend'),
    resume: trans.__('Resume')
  };
  const where = context.remotes.whereIs(kernel);
  const reason = kernel.managed ? currentReason(kernel, where) : '';
  // What is known of a kernel whose server does not answer is old.
  const isReached =
    context.states.problem(kernel.kernel_id)?.code !== GpuCkptError.UNREACHABLE;
  const Caret = isOpen ? caretDownIcon : caretRightIcon;
  return (
    <li ref={card} className="jp-GpuCkptKernel" data-kernel={kernel.kernel_id}>
      <div className="jp-GpuCkptKernel-head">
        <h4>
          <button
            type="button"
            className="jp-GpuCkptKernel-name"
            aria-expanded={isOpen}
            title={kernel.path || kernel.kernel_id}
            onClick={() => setOpen(!isOpen)}
          >
            <Caret.react tag="span" stylesheet="menuItem" />
            <span>{name}</span>
          </button>
        </h4>
        <span
          className="jp-GpuCkptState"
          data-state={kernel.managed ? kernel.state : 'unmanaged'}
          title={stateCaption(kernel)}
        >
          {isReached ? stateLabel(kernel) : trans.__('Connecting')}
        </span>
        {kernel.managed ? (
          <MenuButton label={trans.__('More for %1', name)} open={showMenu} />
        ) : null}
      </div>
      {usage.length > 0 ? (
        <div className="jp-GpuCkptKernel-usage">{usage.join(' · ')}</div>
      ) : null}
      {parent ? (
        <div className="jp-GpuCkptKernel-usage">
          {trans.__('Branch of %1', snapshotTitle(parent))}
        </div>
      ) : null}
      {risk ? (
        <p
          className={
            risk.isLate
              ? 'jp-GpuCkptKernel-reason'
              : 'jp-GpuCkptKernel-usage jp-GpuCkptKernel-risk'
          }
          data-at-risk={risk.isLate ? 'late' : 'as wanted'}
        >
          {riskText(risk, kernel, snapshots)}
        </p>
      ) : null}
      {isAtRemote(kernel) ? (
        <p className="jp-GpuCkptKernel-usage">
          {movedTexts(kernel, where).join(' ')}
        </p>
      ) : null}
      {reason ? <p className="jp-GpuCkptKernel-reason">{reason}</p> : null}
      {beforeTool ? (
        <p className="jp-GpuCkptKernel-usage" data-by-tool>
          {trans.__('An AI agent restored another state.')}{' '}
          <CommandButton
            commands={commands}
            id={snapshotCommandIds.goBack}
            args={{ snapshotId: beforeTool.snapshot_id }}
            icon={icons.resume}
            label={trans.__('Undo')}
            about={name}
          />
        </p>
      ) : null}
      {kernel.operation ? (
        <OperationBar operation={kernel.operation} name={name} />
      ) : null}
      {kernel.managed ? (
        <div className="jp-GpuCkptActions">
          {main.map(action => (
            <CommandButton
              key={buttonKey(action)}
              commands={commands}
              id={commandIds[action]}
              args={args}
              icon={icons[action]}
              label={labels[action]}
              about={name}
            />
          ))}
          {kernel.path.endsWith('.ipynb') ? (
            <button
              type="button"
              className="jp-GpuCkptAction"
              aria-label={trans.__('Open %1', name)}
              onClick={() => openNotebook(kernel.path)}
            >
              {trans.__('Open')}
            </button>
          ) : null}
        </div>
      ) : (
        <p className="jp-GpuCkptSessions-none">{stateCaption(kernel)}</p>
      )}
      {isOpen ? (
        <>
          <Timeline
            context={context}
            label={trans.__('Snapshots of %1', name)}
            snapshots={snapshots}
          />
          {others.length > 0 ? (
            <>
              <div className="jp-GpuCkptSessions-none">
                {trans.__('Of other kernels of this notebook')}
              </div>
              <Timeline
                context={context}
                label={trans.__('Snapshots of other kernels of %1', name)}
                snapshots={others}
              />
            </>
          ) : null}
        </>
      ) : count > 0 ? (
        <div className="jp-GpuCkptSessions-none">
          {trans._n('%1 snapshot', '%1 snapshots', count)}
        </div>
      ) : null}
    </li>
  );
}

function OperationBar(props: {
  operation: IOperation;
  name: string;
}): JSX.Element {
  const { operation, name } = props;
  const text = progressText(operation.progress);
  return (
    <div className="jp-GpuCkptProgress">
      <progress
        aria-label={trans.__('Progress of %1', name)}
        max={100}
        value={percentOf(operation.progress) ?? undefined}
      />
      <span>{text}</span>
    </div>
  );
}
