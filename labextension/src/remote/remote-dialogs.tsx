// The dialogs before a snapshot is fetched from a remote, and before a kernel is moved to one.

import * as React from 'react';

import { agrees, ask, Body, Lines } from '../shared/dialogs';
import type { FetchEstimate } from '../shared/records';
import { trans } from '../shared/translation';
import { movedText, remoteTitle, whereTexts } from './remote-texts';

/** Where a fetched session goes on: in its own suspended kernel here, in its notebook, which may not be here yet, or in a copy. */
export type Target = 'own' | 'notebook' | 'copy';

function targetText(target: Target, path: string): string {
  switch (target) {
    case 'own':
      return trans.__(
        'It goes on in %1, whose kernel is suspended here. Cells and outputs become those of the snapshot, which you can undo.',
        path
      );
    case 'notebook':
      return trans.__(
        'It is resumed into the notebook %1. If that is here already, you are asked before its cells and outputs become those of the snapshot.',
        path
      );
    case 'copy':
      return trans.__(
        'The notebook %1 has a kernel here, which keeps running: the session is resumed into a copy of it.',
        path
      );
  }
}

/**
 * Show where the session runs, the size of the fetch and the obstacles to a resume, and ask.
 *
 * With obstacles the snapshot can be fetched, but not resumed. What another machine runs is taken over. `branch`: the notebook in which
 * the session's own kernel stays on this machine; '' if it is not here or goes on.
 */
export function mayFetch(
  remote: string,
  estimate: FetchEstimate,
  target: Target,
  branch = ''
): Promise<boolean> {
  const { session, snapshot, obstacles, warnings, hint } = estimate;
  const title = remoteTitle({ remote, session, snapshot });
  const isRefused = obstacles.length > 0;
  const takesOver = session.leased_to !== '';
  return agrees(
    trans.__('Fetch %1 from “%2”?', title, remote),
    <div className="jp-GpuCkptDialog">
      {isRefused ? (
        <>
          <p role="alert">
            {trans.__('Its kernel cannot be resumed on this machine:')}
          </p>
          <Lines texts={obstacles} />
          {hint ? <p>{hint}</p> : null}
        </>
      ) : null}
      {warnings.length > 0 ? <Lines texts={warnings} /> : null}
      {whereTexts(estimate).map(text => (
        <p key={text}>{text}</p>
      ))}
      <p>{movedText(estimate)}</p>
      {isRefused ? null : <p>{targetText(target, session.path)}</p>}
      {branch && !isRefused ? (
        <p>
          {trans.__(
            'The session’s own kernel is in %1 here, so the new one is a branch of the session: other machines can still resume the session itself.',
            branch
          )}
        </p>
      ) : null}
    </div>,
    isRefused
      ? trans.__('Fetch Without Resuming')
      : takesOver
        ? trans.__('Take Over and Resume')
        : trans.__('Fetch and Resume'),
    // Enter takes nothing over.
    { warns: isRefused || takesOver, defaultButton: takesOver ? 0 : 1 }
  );
}

/** Ask whether to move a kernel, and to which remote, of at least one; null: the user does not want it after all. */
export async function whereToMove(
  name: string,
  remotes: readonly string[]
): Promise<string | null> {
  const body = new Body(remotes[0], choose => (
    <div className="jp-GpuCkptDialog">
      <p>
        {trans.__(
          'The kernel is suspended, also in the middle of a cell, and uploaded. When that is done, you can close this machine.'
        )}
      </p>
      <p>
        {trans.__(
          'Another machine with the same remote then offers this session first. The notebook goes with it; other files are not moved.'
        )}
      </p>
      {remotes.length > 1 ? (
        <label>
          {trans.__('Remote')}{' '}
          <select onChange={event => choose(event.target.value)}>
            {remotes.map(remote => (
              <option key={remote}>{remote}</option>
            ))}
          </select>
        </label>
      ) : (
        <p>{trans.__('Remote: “%1”', remotes[0])}</p>
      )}
    </div>
  ));
  const title = trans.__('Move %1 to another machine?', name);
  const { button, value } = await ask(title, body, trans.__('Move'));
  return button.accept ? value : null;
}
