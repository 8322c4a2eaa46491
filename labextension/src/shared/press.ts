// What a user's press does while its command is disabled: a notification gives the reason, so that no press is lost without a notice.

import { Notification } from '@jupyterlab/apputils';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

/** How long the reason is shown, in milliseconds. */
const SHOWN = 8000;

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

/** Notify the user of the reason for which a command is disabled. */
export function tellRefusal(label: string, reason: string): void {
  const message = reason.startsWith(label) ? reason : `${label}: ${reason}`;
  // Several presses have one notification.
  Notification.dismiss(told);
  told = Notification.emit(message, 'warning', { autoClose: SHOWN });
}

/** Return whether a command was called by a keyboard shortcut. JupyterLab drops the shortcut of a disabled command and tells nobody. */
export function isShortcut(args: ReadonlyPartialJSONObject): boolean {
  const event = args._luminoEvent as { type?: string } | undefined;
  return event?.type === 'keybinding';
}
