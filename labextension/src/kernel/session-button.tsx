// The buttons in the toolbar of a notebook or a console: save and suspend, or resume, and a menu with the other actions.

import { ReactWidget } from '@jupyterlab/apputils';
import {
  caretDownEmptyThinIcon,
  LabIcon,
  ToolbarButtonComponent
} from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyJSONObject } from '@lumino/coreutils';
import * as React from 'react';

import type { Action } from './commands';
import { actions, buttonKey, commandIds } from './commands';
import type { ISessionPanel } from '../shared/notebooks';
import { kernelIdOf, watchKernel } from '../shared/notebooks';
import { press } from '../shared/press';
import { openMenu } from '../shared/reason-menu';
import type { IKernelStates, IUserSettings } from '../shared/tokens';
import { trans } from '../shared/translation';

/** Draw a button like JupyterLab's, which keeps the focus while its command is disabled, and gives the reason if it is pressed then. */
function ToolbarCommand(props: {
  commands: CommandRegistry;
  id: string;
  args: ReadonlyJSONObject;
}): JSX.Element {
  const { commands, id, args } = props;
  const caption = commands.caption(id, args);
  return React.createElement(
    'jp-button',
    {
      appearance: 'stealth',
      class: 'jp-ToolbarButtonComponent',
      'aria-disabled': !commands.isEnabled(id, args),
      'aria-label': caption,
      title: caption,
      'data-command': id,
      onClick: () => press(commands, id, args)
    },
    <LabIcon.resolveReact
      icon={commands.icon(id, args)}
      iconClass="jp-Icon"
      tag={null}
    />
  );
}

export class SessionButton extends ReactWidget {
  constructor(
    private readonly _panel: ISessionPanel,
    /** Returns the arguments by which the commands find the panel's kernel. */
    private readonly _args: () => ReadonlyJSONObject,
    private readonly _commands: CommandRegistry,
    private readonly _states: IKernelStates,
    private readonly _settings: IUserSettings
  ) {
    super();
    this.addClass('jp-GpuCkptButton');
    // At the end of a click the toolbar activates the notebook if the focus is elsewhere. Since JupyterLab 4.7 the menu has the focus
    // by then. It would lose the focus, and the menu would receive no keys.
    this.node.addEventListener('click', event => {
      if ((event.target as Element).closest('.jp-GpuCkptButton-menu')) {
        event.stopPropagation();
      }
    });
    watchKernel(_panel, _states, () => this.update(), _settings);
  }

  protected render(): JSX.Element {
    const commands = this._commands;
    const args = this._args();
    return (
      <>
        {this._visible.map(action => {
          const id = commandIds[action];
          return (
            <ToolbarCommand
              key={buttonKey(action)}
              commands={commands}
              id={id}
              args={args}
            />
          );
        })}
        <ToolbarButtonComponent
          className="jp-GpuCkptButton-menu"
          icon={caretDownEmptyThinIcon}
          tooltip={trans.__('Save, suspend, restore, branch…')}
          aria-haspopup="menu"
          onClick={this._openMenu}
        />
      </>
    );
  }

  private readonly _openMenu = () =>
    openMenu(
      this._commands,
      actions.map(action => commandIds[action]),
      this._args(),
      this.node
    );

  /** The actions with a button of their own. */
  private get _visible(): Action[] {
    switch (this._states.get(kernelIdOf(this._panel) ?? '')?.state) {
      case 'suspended':
      case 'resuming':
      case 'lost':
        return ['resume'];
      default:
        return this._settings.choices.defaultAction === 'suspend'
          ? ['suspend', 'save']
          : ['save', 'suspend'];
    }
  }
}
