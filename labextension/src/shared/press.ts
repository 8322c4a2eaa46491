// What a user's press does while its command is disabled: a notification gives the reason, so that no press is lost without a notice.

import { Notification } from '@jupyterlab/apputils';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import { tellProblem } from './notices';

let told = '';

/** Run a command; if it is disabled, notify the user of the reason. */
export function press(
  commands: CommandRegistry,
  id: string,
  args: ReadonlyPartialJSONObject
): void {
  if (commands.isEnabled(id, args)) {
    void commands.execute(id, args);
  } else {
    tellRefusal(commands.label(id, args), commands.caption(id, args));
  }
}

/** Notify the user of the reason for which a command is disabled: its cause, and in further lines its remedy. */
export function tellRefusal(label: string, reason: string): void {
  const known = `${label}: `;
  const cause = reason.startsWith(known) ? reason.slice(known.length) : reason;
  // Several presses have one notification.
  Notification.dismiss(told);
  told = tellProblem(label, cause.split('\n'));
}

/** Return whether a command was called by a keyboard shortcut. JupyterLab drops the shortcut of a disabled command and tells nobody. */
export function isShortcut(args: ReadonlyPartialJSONObject): boolean {
  const event = args._luminoEvent as { type?: string } | undefined;
  return event?.type === 'keybinding';
}
