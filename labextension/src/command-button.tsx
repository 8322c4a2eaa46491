// A button that runs a command, or shows why it cannot.

import type { LabIcon } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import * as React from 'react';

export function CommandButton(props: {
  commands: CommandRegistry;
  id: string;
  args: ReadonlyPartialJSONObject;
  icon?: LabIcon;
  label: string;
  /** The kernel or snapshot, where there is such a button for each. */
  about?: string;
}): JSX.Element | null {
  const { commands, id, args, icon, label, about } = props;
  if (!commands.isVisible(id, args)) {
    return null;
  }
  const isEnabled = commands.isEnabled(id, args);
  // With `disabled` it would have no tooltip, and no place in the order of the keyboard.
  return (
    <button
      type="button"
      className="jp-GpuCkptAction"
      aria-disabled={!isEnabled}
      aria-label={about && `${label}: ${about}`}
      title={commands.caption(id, args)}
      onClick={() => isEnabled && void commands.execute(id, args)}
    >
      {icon ? <icon.react tag="span" stylesheet="menuItem" /> : null}
      {label}
    </button>
  );
}

/** A button that opens a menu. */
export function MenuButton(props: {
  label: string;
  open: (anchor: Element) => void;
}): JSX.Element {
  return (
    <button
      type="button"
      className="jp-GpuCkptAction jp-mod-menu"
      aria-haspopup="menu"
      aria-label={props.label}
      title={props.label}
      onClick={event => props.open(event.currentTarget)}
    >
      ⋯
    </button>
  );
}
