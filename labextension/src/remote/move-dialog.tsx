// The question before a kernel is moved to another machine, and to which remote.

import { Dialog, ReactWidget, showDialog } from '@jupyterlab/apputils';
import { trans } from '../shared/translation';
import * as React from 'react';

/** Ask for the remote, of at least one; null: the user does not want it after all. */
export async function whereToMove(
  name: string,
  remotes: readonly string[]
): Promise<string | null> {
  const { button, value } = await showDialog({
    title: trans.__('Move %1 to another machine?', name),
    body: new MoveBody(remotes),
    buttons: [
      Dialog.cancelButton(),
      Dialog.okButton({ label: trans.__('Move') })
    ]
  });
  return button.accept ? (value ?? remotes[0]) : null;
}

class MoveBody extends ReactWidget implements Dialog.IBodyWidget<string> {
  constructor(private readonly _remotes: readonly string[]) {
    super();
    this._chosen = _remotes[0];
  }

  getValue(): string {
    return this._chosen;
  }

  protected render(): JSX.Element {
    const names = this._remotes;
    return (
      <div className="jp-GpuCkptDialog">
        <p>
          {trans.__(
            'The kernel is suspended, also in the middle of a cell, and uploaded. When that is done, you can close this machine.'
          )}
        </p>
        <p>
          {trans.__(
            'Another machine with the same remote then offers this session first. Files, such as the notebook, are not moved.'
          )}
        </p>
        {names.length > 1 ? (
          <label>
            {trans.__('Remote')}{' '}
            <select
              defaultValue={this._chosen}
              onChange={event => {
                this._chosen = event.target.value;
              }}
            >
              {names.map(name => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
        ) : (
          <p>{trans.__('Remote: %1', names[0])}</p>
        )}
      </div>
    );
  }

  private _chosen: string;
}
