// The command that deletes snapshots which the user does not need any more, and its dialog: which ones stay, which ones go, and what that frees.

import type { CommandRegistry } from '@lumino/commands';
import * as React from 'react';

import type { GpuCkptApi } from '../shared/api';
import { GpuCkptError } from '../shared/api';
import { ask, Body, Lines } from '../shared/dialogs';
import { formatBytes, nameOfPath } from '../shared/format';
import { conclude, orTell } from '../shared/notices';
import type {
  IRetention,
  PruneReport,
  RetentionPolicy
} from '../shared/records';
import { explain } from '../shared/texts';
import type { ISnapshots } from '../shared/tokens';
import { trans } from '../shared/translation';
import { causeLabel, expiryTexts, snapshotTitle } from './snapshot-texts';

export const cleanUpCommandId = 'gpuckpt:clean-up';

/** Add the command. It asks which snapshots stay, and shows which ones go and what that frees. */
export function addCleanUpCommand(
  commands: CommandRegistry,
  snapshots: ISnapshots
): void {
  const { api } = snapshots;
  commands.addCommand(cleanUpCommandId, {
    label: trans.__('Clean Up Snapshots…'),
    caption: trans.__('Delete snapshots that you no longer need'),
    describedBy: { args: { type: 'object', properties: {} } },
    execute: async () => {
      const policy = await chooseSnapshotsToKeep(api);
      if (policy === null) {
        return;
      }
      await orTell(trans.__('Cleaning up failed'), async () => {
        const { verdicts, freed_bytes } = await api.prune(policy, false);
        const text = trans._n(
          'Deleted %1 snapshot: freed %2',
          'Deleted %1 snapshots: freed %2',
          verdicts.filter(({ removed }) => removed).length,
          formatBytes(Math.max(0, freed_bytes))
        );
        conclude('', text, 'success');
        await snapshots.refresh();
      });
    }
  });
}

/** Ask which snapshots stay; null: the user does not want a clean-up after all, or nothing would go. */
async function chooseSnapshotsToKeep(
  api: GpuCkptApi
): Promise<IRetention | null> {
  const { button, value } = await ask(
    trans.__('Clean up snapshots'),
    new Body<IRetention | null>(null, choose => (
      <CleanUp api={api} choose={choose} />
    )),
    trans.__('Delete'),
    // Enter in the field for the number deletes nothing.
    { warns: true, defaultButton: 0 }
  );
  if (button.accept && value === null) {
    // It was not known yet, or it was none.
    const text = trans.__('No snapshot was deleted: the dialog listed none.');
    conclude('', text, 'warning');
  }
  return button.accept ? value : null;
}

/** `choose` is called with the policy whose effect is shown, or with null. */
function CleanUp(props: {
  api: GpuCkptApi;
  choose: (policy: IRetention | null) => void;
}): JSX.Element {
  const { api, choose } = props;
  const [policy, setPolicy] = React.useState<IRetention>({
    keep_last: 1,
    manual_too: false
  });
  const [report, setReport] = React.useState<PruneReport | null>(null);
  const [problem, setProblem] = React.useState('');
  const [expiry, setExpiry] = React.useState<RetentionPolicy>();
  React.useEffect(() => {
    api.store().then(
      ({ retention }) => setExpiry(retention),
      () => undefined // the dialog does without it
    );
  }, []);
  React.useEffect(() => {
    let isCurrent = true;
    setReport(null);
    setProblem('');
    choose(null);
    api.prune(policy, true).then(
      found => {
        if (isCurrent) {
          setReport(found);
          const removes = found.verdicts.some(({ removed }) => removed);
          choose(removes ? policy : null);
        }
      },
      error => {
        if (isCurrent && error instanceof GpuCkptError) {
          setProblem(explain(error).join(' '));
        }
      }
    );
    return () => {
      isCurrent = false;
    };
  }, [policy]);
  return (
    <div className="jp-GpuCkptDialog">
      {expiry ? <p>{expiryTexts(expiry).join(' ')}</p> : null}
      <p>
        <label>
          {trans.__('Automatic snapshots to keep of each kernel:')}{' '}
          <input
            type="number"
            min={1}
            max={999}
            value={policy.keep_last}
            onChange={event => {
              const keep_last = Math.max(1, event.target.valueAsNumber || 1);
              setPolicy({ ...policy, keep_last });
            }}
          />
        </label>
      </p>
      <p>
        <label>
          <input
            type="checkbox"
            checked={policy.manual_too}
            onChange={event =>
              setPolicy({ ...policy, manual_too: event.target.checked })
            }
          />{' '}
          {trans.__('Delete snapshots that you took yourself, too')}
        </label>
      </p>
      <p>
        {trans.__(
          'Pinned snapshots and those that a kernel needs are never deleted.'
        )}
      </p>
      {problem ? <p role="alert">{problem}</p> : <Effect report={report} />}
    </div>
  );
}

function Effect({ report }: { report: PruneReport | null }): JSX.Element {
  const gone = (report?.verdicts ?? []).filter(({ removed }) => removed);
  const text =
    report === null
      ? trans.__('Looking…')
      : gone.length === 0
        ? trans.__('No snapshot would be deleted.')
        : trans._n(
            '%1 snapshot will be deleted, which frees about %2. This cannot be undone.',
            '%1 snapshots will be deleted, which frees about %2. This cannot be undone.',
            gone.length,
            formatBytes(report.freed_bytes)
          );
  return (
    <>
      <p role="status">{text}</p>
      <Lines
        texts={gone.map(
          ({ snapshot }) =>
            `${nameOfPath(snapshot.name)}: ${snapshotTitle(snapshot)} · ${causeLabel(snapshot)}`
        )}
      />
    </>
  );
}
