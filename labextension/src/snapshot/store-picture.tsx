// A picture of the store: bytes by notebook, the effect of deduplication and compression, free disk space.

import * as React from 'react';

import type { CommandRegistry } from '@lumino/commands';

import { cleanUpCommandId } from './clean-up';
import { Lines } from '../shared/dialogs';
import { CommandButton } from '../shared/elements';
import { formatBytes, formatShare, nameOfPath } from '../shared/format';
import type { SnapshotView, StoreView } from '../shared/records';
import { savingTexts, snapshotTitle } from './snapshot-texts';
import { trans } from '../shared/translation';

/** The number of notebooks with a color of their own; the others are shown as one part. */
const COLORS = 5;

interface IProps {
  store: StoreView;
}

export function StorePicture(
  props: IProps & {
    commands: CommandRegistry;
    snapshots: readonly SnapshotView[];
  }
): JSX.Element {
  const { store, snapshots, commands } = props;
  return (
    <section
      className="jp-GpuCkptStore"
      aria-labelledby="jp-gpuckpt-store-title"
    >
      <h3 id="jp-gpuckpt-store-title">{trans.__('Disk use')}</h3>
      <p title={store.path}>
        {trans.__(
          '%1 on disk, %2 free',
          formatBytes(store.disk_bytes),
          formatBytes(store.free_bytes)
        )}
      </p>
      <Quota store={store} />
      <Damage
        snapshots={snapshots.filter(({ snapshot_id }) =>
          store.damaged.includes(snapshot_id)
        )}
      />
      <CommandButton
        commands={commands}
        id={cleanUpCommandId}
        args={{}}
        label={trans.__('Clean Up…')}
      />
      <Shares store={store} />
      {savingTexts(store).map(text => (
        <p key={text} className="jp-GpuCkptSessions-none">
          {text}
        </p>
      ))}
    </section>
  );
}

/** Draw how much of the limit for snapshots is used, or of the disk if there is no limit. */
function Quota({ store }: IProps) {
  const limit = store.retention.max_bytes;
  const text = limit
    ? trans.__(
        '%1 of at most %2',
        formatBytes(store.stored_bytes),
        formatBytes(limit)
      )
    : '';
  const [value, max] = limit
    ? [store.stored_bytes, limit]
    : [store.disk_bytes, store.disk_bytes + store.free_bytes];
  return (
    <>
      <meter
        className="jp-GpuCkptStore-quota"
        aria-label={text || trans.__('Share of the disk')}
        max={max}
        high={0.9 * max}
        optimum={0}
        value={value}
      />
      {text ? <p>{text}</p> : null}
    </>
  );
}

/** Warn of damaged snapshots. */
function Damage({ snapshots }: { snapshots: readonly SnapshotView[] }) {
  return snapshots.length > 0 ? (
    <div role="alert">
      {trans._n(
        '%1 snapshot is damaged and cannot be resumed:',
        '%1 snapshots are damaged and cannot be resumed:',
        snapshots.length
      )}
      <Lines
        texts={snapshots.map(
          snapshot => `${nameOfPath(snapshot.name)}: ${snapshotTitle(snapshot)}`
        )}
      />
    </div>
  ) : null;
}

/** A part of the disk use. */
interface IPart {
  /** The number of a notebook's color, or what else it is. */
  color: number | 'others' | 'shared' | 'unused';
  name: string;
  bytes: number;
  caption: string;
}

function Shares({ store }: IProps) {
  const all = partsOf(store);
  const total = all.reduce((sum, { bytes }) => sum + bytes, 0);
  const parts = all.filter(
    ({ color, bytes }) =>
      typeof color === 'number' || formatShare(bytes, total) !== '0%'
  );
  if (store.by_name.length === 0) {
    return null;
  }
  return (
    <>
      <div className="jp-GpuCkptStore-bar" aria-hidden>
        {parts.map(({ color, bytes }) => (
          <span key={color} data-color={color} style={{ flexGrow: bytes }} />
        ))}
      </div>
      <ul className="jp-GpuCkptStore-legend">
        {parts.map(({ color, name, bytes, caption }) => (
          <li key={color} title={caption}>
            <span data-color={color} aria-hidden />
            <span>{name}</span>
            <span>
              {formatBytes(bytes)} ({formatShare(bytes, total)})
            </span>
          </li>
        ))}
      </ul>
    </>
  );
}

/** Return the parts of the disk use, each byte in one of them: what only one notebook needs, what several share, and the rest. */
function partsOf(store: StoreView): IPart[] {
  const sorted = [...store.by_name].sort(
    (one, other) => other.exclusive_bytes - one.exclusive_bytes
  );
  const parts: IPart[] = sorted
    .slice(0, COLORS)
    .map(({ name, snapshots, exclusive_bytes }, color) => ({
      color,
      name: nameOfPath(name),
      bytes: exclusive_bytes,
      caption: trans._n(
        '%2: %1 snapshot; deleting it frees %3',
        '%2: %1 snapshots; deleting them frees %3',
        snapshots,
        name,
        formatBytes(exclusive_bytes)
      )
    }));
  const add = (
    color: IPart['color'],
    name: string,
    bytes: number,
    caption = name
  ) => parts.push({ color, name, bytes, caption });
  const sum = (list: StoreView['by_name']) =>
    list.reduce((total, { exclusive_bytes }) => total + exclusive_bytes, 0);
  add('others', trans.__('Others'), sum(sorted.slice(COLORS)));
  add(
    'shared',
    trans.__('Shared'),
    store.stored_bytes - sum(sorted),
    trans.__('What several notebooks need is stored once')
  );
  add(
    'unused',
    trans.__('Not in use'),
    store.disk_bytes - store.stored_bytes,
    trans.__('Deleted snapshots that can still come back, and tables')
  );
  return parts;
}
