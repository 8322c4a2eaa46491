// The elements of which panels are made.

import type { LabIcon } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import * as React from 'react';

import { formatAge, formatMoment } from './format';
import { press } from './press';
import { trans } from './translation';

/** Draw a button that runs a command; if the command is disabled, its tooltip gives the reason. */
export function CommandButton(props: {
  commands: CommandRegistry;
  id: string;
  args: ReadonlyPartialJSONObject;
  icon?: LabIcon;
  label: string;
  /** The name of the kernel or snapshot, if there are several such buttons. */
  about?: string;
}): JSX.Element | null {
  const { commands, id, args, icon, label, about } = props;
  if (!commands.isVisible(id, args)) {
    return null;
  }
  const isEnabled = commands.isEnabled(id, args);
  // An element with `disabled` would have no tooltip and could not be focused by the keyboard.
  return (
    <button
      type="button"
      className="jp-GpuCkptAction"
      aria-disabled={!isEnabled}
      aria-label={about && `${label}: ${about}`}
      title={commands.caption(id, args)}
      onClick={() => press(commands, id, args)}
    >
      {icon ? <icon.react tag="span" stylesheet="menuItem" /> : null}
      {label}
    </button>
  );
}

/** Draw a button that opens a menu. */
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

/** Draw how long ago a time was (seconds since the epoch). */
export function Age({ time }: { time: number }): JSX.Element {
  return (
    <time
      dateTime={new Date(time * 1000).toISOString()}
      title={formatMoment(time)}
    >
      {formatAge(time)}
    </time>
  );
}

/** Return the first items of a list, and a button that adds the others; null if these are all. */
export function useFirst<T>(
  list: T[],
  count: number
): [T[], JSX.Element | null] {
  const [showsAll, showAll] = React.useState(false);
  const others = list.length - count;
  return showsAll || others <= 0
    ? [list, null]
    : [
        list.slice(0, count),
        <button
          key="more"
          type="button"
          className="jp-GpuCkptLink"
          onClick={() => showAll(true)}
        >
          {trans._n('Show %1 more', 'Show %1 more', others)}
        </button>
      ];
}
