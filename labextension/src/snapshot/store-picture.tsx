// A picture of the store: bytes by notebook, the effect of deduplication and compression, free disk space.

import * as React from 'react';

import type { CommandRegistry } from '@lumino/commands';

import { cleanUpCommandId } from './clean-up';
import { CommandButton } from '../shared/elements';
import { formatBytes, formatShare, nameOfPath } from '../shared/format';
import type { StoreView, NameUsage } from '../shared/records';
import { savingTexts } from './snapshot-texts';
import { trans } from '../shared/translation';

/** The number of notebooks with a color of their own; the others are shown as one part. */
const COLORS = 5;

interface IProps {
  store: StoreView;
}

export function StorePicture(
  props: IProps & { commands: CommandRegistry }
): JSX.Element {
  const { store, commands } = props;
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
      <Damage store={store} />
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

/** Warn of snapshots that cannot be resumed. */
function Damage({ store }: IProps) {
  const count = store.damaged.length;
  return count ? (
    <p role="alert">
      {trans._n(
        '%1 snapshot is damaged and cannot be resumed. `jupyter gpuckpt verify` names it.',
        '%1 snapshots are damaged and cannot be resumed. `jupyter gpuckpt verify` names them.',
        count
      )}
    </p>
  ) : null;
}

function Shares({ store }: IProps) {
  const sorted = [...store.by_name].sort(
    (one, other) => other.stored_bytes - one.stored_bytes
  );
  const total = sorted.reduce((sum, share) => sum + share.stored_bytes, 0);
  if (total === 0) {
    return null;
  }
  const rest = sorted.slice(COLORS);
  const shown = sorted.slice(0, COLORS);
  if (rest.length > 0) {
    shown.push(together(rest, trans.__('Others')));
  }
  return (
    <>
      <div className="jp-GpuCkptStore-bar" aria-hidden>
        {shown.map((share, index) => (
          <span
            key={share.name}
            data-color={index}
            style={{ flexGrow: share.stored_bytes }}
          />
        ))}
      </div>
      <ul className="jp-GpuCkptStore-legend">
        {shown.map((share, index) => (
          <li key={share.name} title={caption(share)}>
            <span data-color={index} aria-hidden />
            <span>{nameOfPath(share.name)}</span>
            <span>
              {formatBytes(share.stored_bytes)} (
              {formatShare(share.stored_bytes, total)})
            </span>
          </li>
        ))}
      </ul>
    </>
  );
}

function together(shares: NameUsage[], name: string): NameUsage {
  const sum = (field: Exclude<keyof NameUsage, 'name'>) =>
    shares.reduce((total, share) => total + share[field], 0);
  return {
    name,
    snapshots: sum('snapshots'),
    stored_bytes: sum('stored_bytes'),
    raw_bytes: sum('raw_bytes'),
    exclusive_bytes: sum('exclusive_bytes')
  };
}

function caption(share: NameUsage): string {
  return trans._n(
    '%2: %1 snapshot; deleting it frees %3',
    '%2: %1 snapshots; deleting them frees %3',
    share.snapshots,
    share.name,
    formatBytes(share.exclusive_bytes)
  );
}
