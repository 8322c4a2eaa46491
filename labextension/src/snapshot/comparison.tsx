// The dialog that compares a snapshot's variables with those of its kernel now.

import { Dialog, showDialog } from '@jupyterlab/apputils';
import * as React from 'react';

import { formatBytes } from '../shared/format';
import type { Comparison, SnapshotView, Variable } from '../shared/records';
import { snapshotTitle } from './snapshot-texts';
import { trans } from '../shared/translation';

/** Show the dialog. */
export async function showComparison(
  snapshot: SnapshotView,
  comparison: Comparison
): Promise<void> {
  await showDialog({
    title: trans.__('Variables: %1 and now', snapshotTitle(snapshot)),
    body: <Comparison comparison={comparison} />,
    buttons: [Dialog.okButton({ label: trans.__('Close') })]
  });
}

function Comparison(props: { comparison: Comparison }) {
  const { comparison } = props;
  const { changed, added, removed, unknown, same } = comparison;
  const rows = [
    ...changed.map(row => ({ ...row, what: trans.__('changed') })),
    ...added.map(now => row(now.name, null, now, trans.__('new'))),
    ...removed.map(then => row(then.name, then, null, trans.__('deleted')))
  ];
  return (
    <div className="jp-GpuCkptDialog">
      {rows.length > 0 ? (
        <table className="jp-GpuCkptTable">
          <thead>
            <tr>
              <th scope="col">{trans.__('Name')}</th>
              <th scope="col">{trans.__('Change')}</th>
              <th scope="col">{trans.__('Then')}</th>
              <th scope="col">{trans.__('Now')}</th>
            </tr>
          </thead>
          <tbody>
            {rows.map(({ name, then, now, what }) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                <td>{what}</td>
                <td>{then ? <Value of={then} /> : '–'}</td>
                <td>{now ? <Value of={now} /> : '–'}</td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : (
        <p>{trans.__('No variables changed.')}</p>
      )}
      <p>{trans._n('%1 unchanged', '%1 unchanged', same)}</p>
      {unknown.length > 0 ? (
        <p>{trans.__('Could not be compared: %1', unknown.join(', '))}</p>
      ) : null}
    </div>
  );
}

function Value({ of }: { of: Variable }) {
  return (
    <>
      {of.kind} {of.summary}
      <span className="jp-GpuCkptTable-size"> {formatBytes(of.bytes)}</span>
    </>
  );
}

function row(
  name: string,
  then: Variable | null,
  now: Variable | null,
  what: string
) {
  return { name, then, now, what };
}
