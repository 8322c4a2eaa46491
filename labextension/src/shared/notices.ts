// The common form of all notifications: the message, the cause, the remedy at the end, and buttons for the details and its command.

import { Clipboard, Notification } from '@jupyterlab/apputils';

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

/** The characters of the longest remedy that is shown, and those of the cause that are worth showing behind a headline. */
const LONGEST_REMEDY = 90;
const LEAST_OF_CAUSE = 40;

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
    detailsAction(headline, sentences, error),
    ...copyActions(sentences)
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

/**
 * Return the text of a notification: the headline, the cause, and the remedy at the end. What does not fit is left out, because the
 * details have it; a remedy is shown whole or not at all.
 */
export function failureText(headline: string, sentences: string[]): string {
  const [cause, ...hints] = sentences;
  const remedy = hints.join(' ');
  const whole = wholeText(headline, sentences);
  if (whole.length <= LONGEST) {
    return whole;
  }
  const shown =
    remedy.length <= LONGEST_REMEDY
      ? remedy
      : commandIn(sentences)
        ? trans.__('“Copy Command” copies what helps.')
        : trans.__('“Details” shows what helps.');
  const room = LONGEST - shown.length - 1;
  const first = /^.*?[.!?](?=\s+\p{Lu})/su.exec(cause)?.[0] ?? cause;
  const texts = [cause, first, withoutFolders(first)].map(
    text => `${headline}: ${text}`
  );
  const text =
    texts.find(({ length }) => length <= room) ??
    (headline.length + LEAST_OF_CAUSE < room
      ? shortened(texts[2], room)
      : shortened(withoutFolders(first), room));
  return `${text} ${shown}`.trimEnd();
}

function wholeText(headline: string, sentences: string[]): string {
  return `${headline}: ${sentences.filter(Boolean).join(' ')}`;
}

/** Return a text whose paths have no folders: "/some/where/a.csv" becomes "…/a.csv". */
function withoutFolders(text: string): string {
  return text.replace(/(?<=^|[\s(])\/\S*\/(?=[^\s/])/gu, '…/');
}

/** Cut a text at the end of a word. */
function shortened(text: string, length: number): string {
  return text.length <= length
    ? text
    : `${text.slice(0, length - 1).replace(/[\s,;:]*\S*$/, '')}…`;
}

/** Return the command that sentences tell the user to run; '' if there is none. */
function commandIn(sentences: string[]): string {
  return /(?:: |\b[Rr]un )`([^`]+)`/.exec(sentences.join(' '))?.[1] ?? '';
}

/** Notify the user of what is not possible, with its cause and its remedy; return the notification's id. `details`: shows more. */
export function tellProblem(
  headline: string,
  sentences: string[],
  more: {
    details?: () => Promise<void>;
    actions?: Notification.IAction[];
    autoClose?: false;
  } = {}
): string {
  const message = failureText(headline, sentences);
  const isWhole = message === wholeText(headline, sentences);
  const details = () => showDetails(headline, sentences, null);
  const show = more.details ?? (isWhole ? null : details);
  const actions = [
    ...(show ? [stayingAction(trans.__('Details'), () => void show())] : []),
    ...copyActions(sentences),
    ...(more.actions ?? [])
  ];
  return Notification.emit(message, 'warning', {
    autoClose:
      more.autoClose ?? (actions.length > 0 ? SHOW_FAILURE : SHOW_SUCCESS),
    actions
  });
}

/** Return a button that leaves its notification open. */
function stayingAction(
  label: string,
  act: () => void,
  caption = label
): Notification.IAction {
  return {
    label,
    caption,
    callback: event => {
      event.preventDefault();
      act();
    }
  };
}

/** Return the button that copies the command of the remedy, if it has one. */
function copyActions(sentences: string[]): Notification.IAction[] {
  const command = commandIn(sentences);
  const copy = () => Clipboard.copyToSystem(command);
  return command
    ? [stayingAction(trans.__('Copy Command'), copy, command)]
    : [];
}

/** Notify the user of a result with warnings, which a button shows. `text`: what is shown before, if not the message alone. */
export function tellWithDetails(
  id: string,
  message: string,
  sentences: string[],
  untilDismissed = false,
  text = message
): string {
  const actions = [
    detailsAction(message, sentences, null),
    ...copyActions(sentences)
  ];
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
