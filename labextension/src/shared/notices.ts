// The common form of all notifications: the message, a remedy, and a button for the details.

import { Notification } from '@jupyterlab/apputils';

import { asOurs, GpuCkptError } from './api';
import { showDetails } from './dialogs';
import { explain } from './texts';
import { trans } from './translation';

/** How long a notification with "Undo" is shown, in milliseconds. */
export const SHOW_UNDO = 30000;

/** How long the notification of an operation's success is shown, in milliseconds. */
const SHOW_SUCCESS = 8000;
const SHOW_FAILURE = 30000;

/** The number of characters after which JupyterLab cuts off the message of a notification. */
const LONGEST = 140;

/** Notify the user of a failure with its hint. `id`: the notification of the progress, or ''. */
export function tellFailure(
  id: string,
  headline: string,
  error: GpuCkptError
): void {
  if (error.code === GpuCkptError.CANCELLED) {
    conclude(id, headline, 'warning');
    return;
  }
  const sentences = explain(error);
  conclude(id, failureText(headline, sentences), 'error', [
    detailsAction(headline, sentences, error)
  ]);
}

/** Return the result of a task; null if it failed, of which the user is notified. */
export async function orTell<T>(
  headline: string,
  task: () => Promise<T>
): Promise<T | null> {
  try {
    return await task();
  } catch (error) {
    tellFailure('', headline, asOurs(error));
    return null;
  }
}

/** Carry out a task, during which a notification says that it has `started`. The task, or its failure, replaces that text. */
export async function during(
  started: string,
  failed: string,
  task: (id: string) => Promise<void>
): Promise<void> {
  const id = Notification.emit(started, 'in-progress', { autoClose: false });
  try {
    await task(id);
  } catch (error) {
    if (!(error instanceof GpuCkptError)) {
      Notification.dismiss(id);
      throw error;
    }
    tellFailure(id, failed, error);
  }
}

/** Return the headline with cause and hint. If that is too long, the cause is shortened, so that the hint is visible. */
export function failureText(headline: string, sentences: string[]): string {
  const [cause, ...hints] = sentences;
  const hint = hints.join(' ');
  const whole = `${headline}: ${[cause, hint].filter(Boolean).join(' ')}`;
  const room = LONGEST - headline.length - hint.length - 4;
  return whole.length <= LONGEST || room < 20
    ? whole
    : `${headline}: ${cause.slice(0, room).trimEnd()}… ${hint}`.trimEnd();
}

/** Notify the user of a result with warnings, which a button shows. `text`: what is shown before, if not the message alone. */
export function tellWithDetails(
  id: string,
  message: string,
  sentences: string[],
  untilDismissed = false,
  text = message
): string {
  const actions = [detailsAction(message, sentences, null)];
  return conclude(id, text, 'warning', actions, untilDismissed);
}

/** Replace the notification of the progress, unless the user has closed it, by that of the end; return its id. */
export function conclude(
  id: string,
  message: string,
  type: 'success' | 'warning' | 'error',
  actions: Notification.IAction[] = [],
  untilDismissed = false
): string {
  // A warning without details is shown as briefly as a success.
  const stays = type === 'error' || actions.length > 0;
  const shown = stays ? SHOW_FAILURE : SHOW_SUCCESS;
  const options = {
    autoClose: untilDismissed ? false : shown,
    actions
  } as const;
  return id && Notification.update({ id, message, type, ...options })
    ? id
    : Notification.emit(message, type, options);
}

/** Return the button that opens the dialog with the details. */
function detailsAction(
  title: string,
  sentences: string[],
  error: GpuCkptError | null
): Notification.IAction {
  return {
    label: trans.__('Details'),
    callback: () => void showDetails(title, sentences, error)
  };
}
