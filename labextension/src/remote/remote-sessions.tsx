// The panel's list of the sessions that remotes have and this machine has not.

import * as React from 'react';

import { Age, CommandButton, useFirst } from '../shared/elements';
import { remoteTitle } from './remote-texts';
import { fetchCommandId } from './fetch-commands';
import { addRemoteCommandId, joinLineCommandId } from './new-remote-dialog';
import { formatAge, formatBytes, nameOfPath } from '../shared/format';
import { resumeIcon } from '../shared/icons';
import type { IKnownRemote, IRemoteChoice, IRemotes } from './remotes';
import { elsewhere, runElsewhere } from './remotes';
import type { IPanelContext } from '../shared/tokens';
import { explain } from '../shared/texts';
import { trans } from '../shared/translation';

/** The number of sessions that are shown at first. */
const FIRST = 5;

export function RemoteSessions(props: {
  context: IPanelContext;
  remotes: IRemotes;
}): JSX.Element | null {
  const { remotes } = props;
  const { snapshots, states, currentPath } = props.context;
  const { known } = remotes;
  const list = snapshots.list ?? [];
  const paths = [
    currentPath(),
    ...states.all().map(({ path }) => path),
    ...list.map(({ name }) => name)
  ];
  const here = new Set(list.map(({ snapshot_id }) => snapshot_id));
  const choices = elsewhere(known, here, paths);
  const away = runElsewhere(known, here);
  const [shown, more] = useFirst(choices, FIRST);
  return (
    <section
      className="jp-GpuCkptRemote"
      aria-labelledby="jp-gpuckpt-elsewhere"
      aria-busy={remotes.isAsking}
    >
      <h3 id="jp-gpuckpt-elsewhere">
        {known.length === 0
          ? trans.__('Other machines')
          : trans.__('From other machines')}
      </h3>
      {known.map(remote => (
        <Problems key={remote.name} remote={remote} />
      ))}
      {away.map(({ session_id, path, title, leased_to }) => (
        <p key={session_id} className="jp-GpuCkptSessions-none">
          {trans.__('%1 runs on %2.', title || nameOfPath(path), leased_to)}
        </p>
      ))}
      {choices.length + away.length === 0 &&
      known.every(({ listing }) => listing) ? (
        <p className="jp-GpuCkptSessions-none">
          {known.length === 0
            ? trans.__(
                'Other machines can continue sessions from a remote, which is a folder or a bucket.'
              )
            : trans.__('All sessions in the remotes are on this machine.')}
        </p>
      ) : null}
      <ul className="jp-GpuCkptSessions-list">
        {shown.map(choice => (
          <Choice
            key={choice.snapshot.snapshot_id}
            choice={choice}
            context={props.context}
          />
        ))}
      </ul>
      {more}
      {known.length === 0 ? null : (
        <button
          type="button"
          className="jp-GpuCkptLink"
          aria-disabled={remotes.isAsking}
          onClick={() => void remotes.refresh()}
        >
          {remotes.isAsking ? trans.__('Looking…') : trans.__('Look again')}
        </button>
      )}
      {known
        .filter(({ listing }) => listing !== null)
        .map(({ name }) => (
          <CommandButton
            key={name}
            commands={props.context.commands}
            id={joinLineCommandId}
            args={{ remote: name }}
            label={trans.__('Join Line of “%1”…', name)}
          />
        ))}
      <CommandButton
        commands={props.context.commands}
        id={addRemoteCommandId}
        args={{}}
        label={trans.__('Add Remote…')}
      />
    </section>
  );
}

function Choice(props: {
  choice: IRemoteChoice;
  context: IPanelContext;
}): JSX.Element {
  const { choice, context } = props;
  const { commands } = context;
  const { remote, session, snapshot } = choice;
  const title = remoteTitle(choice);
  return (
    <li
      className="jp-GpuCkptKernel"
      data-remote-session={session.session_id}
      data-path={session.path}
    >
      <h4 title={session.path}>{title}</h4>
      <div className="jp-GpuCkptSnapshot-facts">
        <Age time={snapshot.created} />
        <span>{formatBytes(snapshot.stored_bytes)}</span>
        {session.host_name ? <span>{session.host_name}</span> : null}
        {session.moved_at ? (
          <span
            className="jp-GpuCkptCause"
            title={trans.__('Moved %1', formatAge(session.moved_at))}
          >
            {trans.__('moved')}
          </span>
        ) : null}
        <span className="jp-GpuCkptCause" title={trans.__('The remote')}>
          {remote}
        </span>
      </div>
      <div className="jp-GpuCkptActions">
        <CommandButton
          commands={commands}
          id={fetchCommandId}
          args={{
            remote,
            sessionId: session.session_id,
            snapshotId: snapshot.snapshot_id
          }}
          icon={resumeIcon}
          label={trans.__('Fetch and Resume…')}
        />
      </div>
    </li>
  );
}

/** Draw the reasons why some content of a remote is not listed. */
function Problems({ remote }: { remote: IKnownRemote }) {
  const texts = [
    ...(remote.problem ? [explain(remote.problem).join(' ')] : []),
    ...(remote.listing?.unreadable ?? [])
  ];
  return texts.length === 0 ? null : (
    <div role="alert" className="jp-GpuCkptSessions-problem">
      {texts.map(text => (
        <p key={text}>{trans.__('“%1”: %2', remote.name, text)}</p>
      ))}
    </div>
  );
}
