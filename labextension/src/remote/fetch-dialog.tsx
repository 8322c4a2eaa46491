// The dialogs before a snapshot is fetched from a remote.

import { Dialog, showDialog } from '@jupyterlab/apputils';
import * as React from 'react';

import type { FetchEstimate } from '../shared/records';
import { remoteTitle, movedText, originText } from './remote-texts';
import { trans } from '../shared/translation';

/** Show the size of the fetch and the obstacles to a resume, and ask. With obstacles the snapshot can be fetched, but not resumed. */
export async function mayFetch(
  remote: string,
  estimate: FetchEstimate,
  isBusy: boolean
): Promise<boolean> {
  const { session, snapshot, obstacles, warnings, hint } = estimate;
  const title = remoteTitle({ remote, session, snapshot });
  const isRefused = obstacles.length > 0;
  const { button } = await showDialog({
    title: trans.__('Fetch %1 from %2?', title, remote),
    body: (
      <div className="jp-GpuCkptDialog">
        {isRefused ? (
          <>
            <p role="alert">
              {trans.__('Its kernel cannot be resumed on this machine:')}
            </p>
            <Sentences texts={obstacles} />
            {hint ? <p>{hint}</p> : null}
          </>
        ) : null}
        {warnings.length > 0 ? <Sentences texts={warnings} /> : null}
        <p>{movedText(estimate)}</p>
        <p>{originText(estimate)}</p>
        {isRefused ? null : (
          <p>
            {isBusy
              ? trans.__(
                  'The notebook %1 has a kernel here, which keeps running: the session is resumed into a copy of it.',
                  session.path
                )
              : trans.__(
                  'It is resumed into the notebook %1, whose cells and outputs are those that it has here.',
                  session.path
                )}
          </p>
        )}
      </div>
    ),
    buttons: isRefused
      ? [
          Dialog.cancelButton(),
          Dialog.warnButton({ label: trans.__('Fetch Without Resuming') })
        ]
      : [
          Dialog.cancelButton(),
          Dialog.okButton({ label: trans.__('Fetch and Resume') })
        ]
  });
  return button.accept;
}

/** Ask whether to resume a session here although another machine may still run it. `cause`: the server's sentence about that. */
export async function mayTakeOver(
  name: string,
  machine: string,
  cause = ''
): Promise<boolean> {
  const who =
    cause ||
    trans.__(
      'The machine %1 may still run it.',
      machine || trans.__('that has it')
    );
  const { button } = await showDialog({
    title: trans.__('Take over %1?', name),
    body: [
      who,
      trans.__(
        'Taking over does not stop it there: it keeps writing files and sending requests, as a separate session. What it has not uploaded is missing here.'
      )
    ].join(' '),
    buttons: [
      Dialog.cancelButton(),
      Dialog.warnButton({ label: trans.__('Take Over') })
    ]
  });
  return button.accept;
}

function Sentences(props: { texts: string[] }): JSX.Element {
  return (
    <ul className="jp-GpuCkptDialog-files">
      {props.texts.map(text => (
        <li key={text}>{text}</li>
      ))}
    </ul>
  );
}
