// The dialog with the details of a snapshot.

import { Dialog, showDialog } from '@jupyterlab/apputils';
import * as React from 'react';

import { uploadsCaption } from '../remote/remote-texts';
import { formatBytes, formatMoment, formatSeconds } from '../shared/format';
import type { SnapshotView } from '../shared/records';
import { causeCaption, sizeText, snapshotTitle } from './snapshot-texts';
import { trans } from '../shared/translation';

/** Show the dialog. */
export async function showSnapshot(snapshot: SnapshotView): Promise<void> {
  const facts: [string, string][] = [
    [trans.__('Taken'), formatMoment(snapshot.created)],
    [trans.__('Reason'), causeCaption(snapshot)],
    [trans.__('Notebook'), snapshot.name],
    [trans.__('Note'), snapshot.note],
    [trans.__('Memory'), formatBytes(snapshot.raw_bytes)],
    [
      trans.__('GPU memory'),
      snapshot.gpu_bytes > 0 ? formatBytes(snapshot.gpu_bytes) : ''
    ],
    [trans.__('Disk use'), sizeText(snapshot)],
    [
      trans.__('Duration'),
      trans.__(
        '%1 (kernel paused %2)',
        formatSeconds(snapshot.seconds),
        formatSeconds(snapshot.frozen_seconds)
      )
    ],
    [trans.__('Machine'), snapshot.host_name],
    [trans.__('Remotes'), uploadsCaption(snapshot)],
    [trans.__('ID'), snapshot.snapshot_id]
  ];
  await showDialog({
    title: snapshotTitle(snapshot),
    body: (
      <div className="jp-GpuCkptDialog">
        <dl className="jp-GpuCkptFacts">
          {facts
            .filter(([, value]) => value)
            .map(([name, value]) => (
              <React.Fragment key={name}>
                <dt>{name}</dt>
                <dd>{value}</dd>
              </React.Fragment>
            ))}
        </dl>
        {snapshot.variables.length > 0 ? (
          <table className="jp-GpuCkptTable">
            <caption>{trans.__('Largest variables')}</caption>
            <thead>
              <tr>
                <th scope="col">{trans.__('Name')}</th>
                <th scope="col">{trans.__('Type')}</th>
                <th scope="col">{trans.__('Value')}</th>
                <th scope="col">{trans.__('Size')}</th>
              </tr>
            </thead>
            <tbody>
              {snapshot.variables.map(({ name, kind, summary, bytes }) => (
                <tr key={name}>
                  <th scope="row">{name}</th>
                  <td>{kind}</td>
                  <td>{summary}</td>
                  <td>{formatBytes(bytes)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        ) : null}
      </div>
    ),
    buttons: [Dialog.okButton({ label: trans.__('Close') })]
  });
}
