// The dialog before a clean-up: which snapshots stay, which ones go, and what that frees.

import { Dialog, ReactWidget, showDialog } from '@jupyterlab/apputils';
import * as React from 'react';

import type { GpuCkptApi } from '../shared/api';
import { GpuCkptError } from '../shared/api';
import { formatBytes, nameOfPath } from '../shared/format';
import { conclude } from '../shared/notices';
import type {
  RetentionPolicy,
  PruneReport,
  IRetention
} from '../shared/records';
import { causeLabel, expiryTexts, snapshotTitle } from './snapshot-texts';
import { explain } from '../shared/texts';
import { trans } from '../shared/translation';

/** Ask which snapshots stay; null: the user does not want a clean-up after all, or nothing would go. */
export async function chooseSnapshotsToKeep(
  api: GpuCkptApi
): Promise<IRetention | null> {
  const { button, value } = await showDialog({
    title: trans.__('Clean up snapshots'),
    body: new CleanUpBody(api),
    buttons: [
      Dialog.cancelButton(),
      Dialog.warnButton({ label: trans.__('Delete') })
    ],
    // Enter in the field for the number deletes nothing.
    defaultButton: 0
  });
  if (button.accept && value === null) {
    // It was not known yet, or it was none.
    const text = trans.__('No snapshot was deleted: the dialog listed none.');
    conclude('', text, 'warning');
  }
  return button.accept ? value : null;
}

class CleanUpBody
  extends ReactWidget
  implements Dialog.IBodyWidget<IRetention | null>
{
  constructor(private readonly _api: GpuCkptApi) {
    super();
  }

  getValue(): IRetention | null {
    return this._chosen;
  }

  protected render(): JSX.Element {
    return (
      <CleanUp
        api={this._api}
        choose={policy => {
          this._chosen = policy;
        }}
      />
    );
  }

  private _chosen: IRetention | null = null;
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

function Effect(props: { report: PruneReport | null }): JSX.Element {
  const { report } = props;
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
      <ul className="jp-GpuCkptDialog-files">
        {gone.map(({ snapshot }) => (
          <li key={snapshot.snapshot_id}>
            {nameOfPath(snapshot.name)}: {snapshotTitle(snapshot)} ·{' '}
            {causeLabel(snapshot)}
          </li>
        ))}
      </ul>
    </>
  );
}
