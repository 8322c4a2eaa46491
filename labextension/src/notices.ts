// Notifications in the one form that all of ours have: the message, then what helps, and a button for the rest.

import { Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';

import { GpuCkptError } from './api';
import { explain } from './texts';

/** How long something can be undone from its notification, in milliseconds. */
export const SHOW_UNDO = 30000;

/** How long the end of an operation stays on the screen, in milliseconds. */
const SHOW_SUCCESS = 8000;
const SHOW_FAILURE = 30000;

/** JupyterLab cuts the messages of notifications off after so many characters. */
const LONGEST = 140;

/** Say that something failed, with its hint; `id`: the notification of its progress, or ''. */
export function tellFailure(
  id: string,
  headline: string,
  error: GpuCkptError,
  trans: TranslationBundle
): void {
  if (error.code === GpuCkptError.CANCELLED) {
    conclude(id, headline, 'warning');
    return;
  }
  const sentences = explain(error, trans);
  conclude(id, failureText(headline, sentences), 'error', [
    detailsAction(headline, sentences, error, trans)
  ]);
}

/** The headline with cause and hint. Of what is too long the cause is cut, so that the hint is seen; both are in the details. */
export function failureText(headline: string, sentences: string[]): string {
  const [cause, ...hints] = sentences;
  const hint = hints.join(' ');
  const whole = `${headline}: ${[cause, hint].filter(Boolean).join(' ')}`;
  const room = LONGEST - headline.length - hint.length - 4;
  return whole.length <= LONGEST || room < 20
    ? whole
    : `${headline}: ${cause.slice(0, room).trimEnd()}… ${hint}`.trimEnd();
}

/** Say that something came with warnings, which a button shows. */
export function tellWithDetails(
  id: string,
  message: string,
  sentences: string[],
  trans: TranslationBundle
): void {
  conclude(id, message, 'warning', [
    detailsAction(message, sentences, null, trans)
  ]);
}

/** Turn the notification of the progress into that of the end; the user may have closed it. */
export function conclude(
  id: string,
  message: string,
  type: 'success' | 'warning' | 'error',
  actions: Notification.IAction[] = []
): void {
  // A warning that has no more to say is as short as a success.
  const stays = type === 'error' || actions.length > 0;
  const options = { autoClose: stays ? SHOW_FAILURE : SHOW_SUCCESS, actions };
  if (!id || !Notification.update({ id, message, type, ...options })) {
    Notification.emit(message, type, options);
  }
}

/** The button that opens the dialog with all that is known. */
function detailsAction(
  title: string,
  sentences: string[],
  error: GpuCkptError | null,
  trans: TranslationBundle
): Notification.IAction {
  return {
    label: trans.__('Details'),
    callback: async () => {
      const { showDetails } = await import('./details');
      await showDetails(title, sentences, error, trans);
    }
  };
}
