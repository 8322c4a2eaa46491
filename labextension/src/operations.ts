// Runs an operation and tells the user of its progress and end, in this tab only.

import { Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';

import { GpuCkptError } from './api';
import type { IOperation, OperationKind } from './protocol';
import {
  doneText,
  explain,
  failedText,
  progressText,
  startedText
} from './texts';
import type { IKernelStates } from './tokens';

/** How long the end of an operation stays on the screen, in milliseconds. */
const SHOW_SUCCESS = 8000;
const SHOW_FAILURE = 30000;

/** JupyterLab cuts a longer notification off. */
const LONGEST_NOTIFICATION = 140;

/**
 * Save, suspend or resume the kernel of the notebook `name`.
 *
 * @returns the operation, or null if it failed; the user has been told.
 */
export async function runWithNotification(
  kind: OperationKind,
  kernelId: string,
  name: string,
  states: IKernelStates,
  trans: TranslationBundle
): Promise<IOperation | null> {
  const started = startedText(kind, name, trans);
  const id = Notification.emit(started, 'in-progress', { autoClose: false });
  const showProgress = () => {
    const operation = states.get(kernelId)?.operation;
    if (operation?.kind === kind) {
      const progress = progressText(operation.progress);
      Notification.update({
        id,
        message: progress ? `${started} ${progress}` : started
      });
    }
  };
  states.changed.connect(showProgress);
  try {
    const operation = await states.run(kind, kernelId);
    showSuccess(id, doneText(operation, name, trans), operation, trans);
    return operation;
  } catch (error) {
    if (!(error instanceof GpuCkptError)) {
      Notification.dismiss(id);
      throw error;
    }
    showFailure(id, failedText(kind, name, error, trans), error, trans);
    return null;
  } finally {
    states.changed.disconnect(showProgress);
  }
}

function showSuccess(
  id: string,
  message: string,
  operation: IOperation,
  trans: TranslationBundle
): void {
  const warnings = operation.result?.warnings ?? [];
  if (warnings.length > 0) {
    conclude(id, message, 'warning', {
      autoClose: SHOW_FAILURE,
      actions: [detailsAction(message, warnings, null, trans)]
    });
  } else {
    conclude(id, message, 'success', { autoClose: SHOW_SUCCESS });
  }
}

function showFailure(
  id: string,
  headline: string,
  error: GpuCkptError,
  trans: TranslationBundle
): void {
  if (error.code === GpuCkptError.CANCELLED) {
    conclude(id, headline, 'warning', { autoClose: SHOW_SUCCESS });
    return;
  }
  const sentences = explain(error, trans);
  const message = `${headline}: ${sentences.join(' ')}`;
  const hasMore = error.details || message.length > LONGEST_NOTIFICATION;
  conclude(id, message, 'error', {
    autoClose: SHOW_FAILURE,
    actions: hasMore ? [detailsAction(headline, sentences, error, trans)] : []
  });
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

/** Turn the notification of the progress into that of the end; the user may have closed it. */
function conclude(
  id: string,
  message: string,
  type: 'success' | 'warning' | 'error',
  options: { autoClose: number; actions?: Notification.IAction[] }
): void {
  if (!Notification.update({ id, message, type, ...options })) {
    Notification.emit(message, type, options);
  }
}
