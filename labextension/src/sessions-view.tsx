// The content of the panel "Sessions": live kernels with their snapshots, snapshots of ended ones, the store.

import * as React from 'react';

import { CommandButton } from './shared/elements';
import { RemoteSessions } from './remote/remote-sessions';
import { nameOfPath } from './shared/format';
import { KernelCard } from './kernel-card';
import type { SnapshotView } from './shared/records';
import { importCommandId } from './snapshot/snapshot-commands';
import type { SessionsPanel } from './sessions-panel';
import { StorePicture } from './snapshot/store-picture';
import { explain, kernelName } from './shared/texts';
import { Timeline } from './snapshot/timeline';
import { trans } from './shared/translation';

/** The interval at which ages are drawn again, in milliseconds. */
const REDRAW = 10000;

export default function SessionsView(props: {
  context: SessionsPanel.IContext;
  revealed: SessionsPanel.IRevealed;
}): JSX.Element {
  const { context, revealed } = props;
  const { states, snapshots, commands } = context;
  const [, redraw] = React.useReducer((count: number) => count + 1, 0);
  React.useEffect(() => {
    const timer = setInterval(redraw, REDRAW);
    return () => clearInterval(timer);
  }, []);

  const problem = snapshots.problem;
  const kernels = states
    .all()
    .sort((one, other) => kernelName(one).localeCompare(kernelName(other)));
  const list = snapshots.list ?? [];
  const byKernel = groups(list, ({ kernel_id }) => kernel_id);
  const ofEnded = list.filter(({ kernel_id }) => !states.get(kernel_id));
  // A notebook that was renamed is one notebook: the newest snapshot of its kernel has its name.
  const pathOf = ({ kernel_id }: SnapshotView) =>
    byKernel.get(kernel_id)?.[0].name ?? '';
  const byPath = groups(ofEnded, pathOf);
  const paths = new Set(kernels.map(({ path }) => path));
  const ended = [...byPath].filter(([path]) => !paths.has(path));
  return (
    <>
      <div className="jp-GpuCkptSessions-header">
        <h2>{trans.__('Sessions')}</h2>
        <CommandButton
          commands={commands}
          id={importCommandId}
          args={{}}
          label={trans.__('Import…')}
        />
      </div>
      {problem ? (
        <p role="alert" className="jp-GpuCkptSessions-problem">
          {explain(problem).join(' ')}
        </p>
      ) : null}
      <section aria-labelledby="jp-gpuckpt-kernels">
        <h3 id="jp-gpuckpt-kernels">{trans.__('Kernels')}</h3>
        {kernels.length === 0 ? (
          <p className="jp-GpuCkptSessions-none">
            {trans.__('No kernels are running or suspended.')}
          </p>
        ) : null}
        <ul className="jp-GpuCkptSessions-list">
          {kernels.map(kernel => (
            <KernelCard
              key={kernel.kernel_id}
              context={context}
              kernel={kernel}
              snapshots={byKernel.get(kernel.kernel_id) ?? []}
              others={byPath.get(kernel.path) ?? []}
              revealed={
                revealed.kernelId === kernel.kernel_id ? revealed : null
              }
            />
          ))}
        </ul>
      </section>
      {ended.length > 0 ? (
        <section aria-labelledby="jp-gpuckpt-ended">
          <h3 id="jp-gpuckpt-ended">
            {trans.__('Snapshots of ended kernels')}
          </h3>
          <ul className="jp-GpuCkptSessions-list">
            {ended.map(([name, list]) => (
              <li key={name} className="jp-GpuCkptKernel">
                <h4 title={name}>{nameOfPath(name)}</h4>
                <Timeline
                  context={context}
                  label={trans.__('Snapshots of %1', nameOfPath(name))}
                  snapshots={list}
                />
              </li>
            ))}
          </ul>
        </section>
      ) : null}
      <RemoteSessions context={context} remotes={context.remotes} />
      {snapshots.store ? (
        <StorePicture
          store={snapshots.store}
          snapshots={snapshots.list ?? []}
          commands={commands}
        />
      ) : null}
    </>
  );
}

/** Return groups of snapshots with the same key; the order is kept. */
function groups(
  list: readonly SnapshotView[],
  keyOf: (snapshot: SnapshotView) => string
): Map<string, SnapshotView[]> {
  const found = new Map<string, SnapshotView[]>();
  for (const snapshot of list) {
    const key = keyOf(snapshot);
    found.set(key, [...(found.get(key) ?? []), snapshot]);
  }
  return found;
}
