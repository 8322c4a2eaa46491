// Everything that is said to the user about kernels and operations. Pure functions.

import type { TranslationBundle } from '@jupyterlab/translation';

import { GpuCkptError } from './api';
import type {
  IErrorRecord,
  IKernel,
  IOperation,
  IProgress,
  KernelState,
  OperationKind
} from './protocol';
import type { IKernelStates } from './tokens';

/** The name of a kernel's state. */
export function stateLabel(state: KernelState, trans: TranslationBundle) {
  const labels: Record<KernelState, string> = {
    starting: trans.__('Starting'),
    running: trans.__('Running'),
    saving: trans.__('Saving'),
    parking: trans.__('Parking'),
    parked: trans.__('Parked'),
    unparking: trans.__('Unparking'),
    suspending: trans.__('Suspending'),
    suspended: trans.__('Suspended'),
    resuming: trans.__('Resuming'),
    lost: trans.__('Lost')
  };
  return labels[state] ?? state;
}

/** What a kernel's state means, in a sentence. */
export function stateCaption(kernel: IKernel, trans: TranslationBundle) {
  if (!kernel.managed) {
    return notManaged(kernel, trans);
  }
  if (kernel.reason) {
    const failed = trans.__('The last operation failed: %1', kernel.reason);
    return [failed, kernel.hint].filter(Boolean).join(' ');
  }
  switch (kernel.state) {
    case 'suspended':
      return trans.__(
        'The kernel is kept on disk and uses neither memory nor GPU.'
      );
    case 'parked':
      return trans.__(
        'The kernel runs; its GPU memory is kept in main memory until it is needed.'
      );
    case 'lost':
      return trans.__('The kernel’s process ended without being suspended.');
    default:
      return trans.__('The kernel runs under the engine and can be saved.');
  }
}

/** Stage and percentage of an operation, e.g. "writing pages 42%". */
export function progressText(progress: IProgress): string {
  const { stage, done_bytes, total_bytes } = progress;
  const percent = total_bytes
    ? `${Math.min(100, Math.floor((100 * done_bytes) / total_bytes))}%`
    : '';
  return [stage.replace(/[_-]/g, ' '), percent].filter(Boolean).join(' ');
}

/** What is being done to `name`. */
export function startedText(
  kind: OperationKind,
  name: string,
  trans: TranslationBundle
): string {
  switch (kind) {
    case 'save':
      return trans.__('Saving %1…', name);
    case 'suspend':
      return trans.__('Suspending %1…', name);
    case 'resume':
      return trans.__('Resuming %1…', name);
  }
}

/** What a successful operation did to `name`. */
export function doneText(
  operation: IOperation,
  name: string,
  trans: TranslationBundle
): string {
  const { kind, result } = operation;
  if (result === null) {
    switch (kind) {
      case 'save':
        return trans.__('Saved %1', name);
      case 'suspend':
        return trans.__('Suspended %1', name);
      case 'resume':
        return trans.__('Resumed %1', name);
    }
  }
  switch (kind) {
    case 'save':
      return trans.__(
        'Saved %1: kernel stood still %2, %3 new, %4 in all',
        name,
        formatSeconds(result.frozen_seconds),
        formatBytes(result.new_bytes),
        formatBytes(result.stored_bytes)
      );
    case 'suspend':
      return trans.__(
        'Suspended %1: %2 stored in %3',
        name,
        formatBytes(result.stored_bytes),
        formatSeconds(result.seconds)
      );
    case 'resume':
      return trans.__(
        'Resumed %1: %2 back in %3',
        name,
        formatBytes(result.raw_bytes),
        formatSeconds(result.seconds)
      );
  }
}

/** That an operation on `name` failed or was cancelled. */
export function failedText(
  kind: OperationKind,
  name: string,
  error: GpuCkptError,
  trans: TranslationBundle
): string {
  const cancelled = error.code === GpuCkptError.CANCELLED;
  switch (kind) {
    case 'save':
      return cancelled
        ? trans.__('Saving %1 was cancelled', name)
        : trans.__('Saving %1 failed', name);
    case 'suspend':
      return cancelled
        ? trans.__('Suspending %1 was cancelled', name)
        : trans.__('Suspending %1 failed', name);
    case 'resume':
      return cancelled
        ? trans.__('Resuming %1 was cancelled', name)
        : trans.__('Resuming %1 failed', name);
  }
}

/** The sentences of an error: what is wrong, and what helps. */
export function explain(error: IErrorRecord, trans: TranslationBundle) {
  switch (error.code) {
    case GpuCkptError.UNREACHABLE:
      return [
        trans.__('The Jupyter server does not answer.'),
        trans.__('The state is shown again as soon as it does.')
      ];
    case GpuCkptError.NO_EXTENSION:
      return [
        trans.__('The server extension jupyter_gpuckpt does not run here.'),
        trans.__('`jupyter server extension list` says why.')
      ];
    default:
      return [error.message, error.hint ?? ''].filter(Boolean);
  }
}

/** Why `kind` cannot be done to a kernel now; null if it can. */
export function refusal(
  kind: OperationKind,
  kernelId: string | null,
  states: IKernelStates,
  trans: TranslationBundle
): string | null {
  if (kernelId === null) {
    return trans.__('This notebook has no kernel.');
  }
  const kernel = states.get(kernelId);
  if (kernel === undefined) {
    const problem = states.problem(kernelId);
    return problem
      ? explain(problem, trans).join(' ')
      : trans.__('The state of this kernel is not known yet.');
  }
  if (!kernel.managed) {
    return notManaged(kernel, trans);
  }
  const inFlight = states.inFlight(kernelId);
  if (inFlight !== null && !(inFlight === 'save' && kind === 'suspend')) {
    return trans.__('An operation on this kernel is in flight.');
  }
  if (allowed[kind].includes(kernel.state)) {
    return kind === 'resume' &&
      kernel.state === 'lost' &&
      kernel.snapshot_id === null
      ? trans.__('There is no snapshot to resume this kernel from.')
      : null;
  }
  switch (kernel.state) {
    case 'running':
      return trans.__('This kernel is running.');
    case 'suspended':
      return trans.__('This kernel is suspended.');
    case 'lost':
      return trans.__('This kernel was lost.');
    default:
      return trans.__('This kernel is changing its state.');
  }
}

/** In which states a kernel can be saved, suspended and resumed. A suspend pre-empts a save. */
const allowed: Record<OperationKind, readonly KernelState[]> = {
  save: ['running', 'parked'],
  suspend: ['running', 'parked', 'saving'],
  resume: ['suspended', 'parked', 'lost']
};

/** A size in decimal units, three digits: "412 MB". */
export function formatBytes(bytes: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let unit = 0;
  while (Math.round(bytes) >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    unit += 1;
  }
  return `${Number(bytes.toPrecision(3))} ${units[unit]}`;
}

/** A time in seconds, two digits: "0.18 s". */
export function formatSeconds(seconds: number): string {
  return seconds < 10
    ? `${Number(Math.max(seconds, 0.01).toPrecision(2))} s`
    : `${Math.round(seconds)} s`;
}

function notManaged(kernel: IKernel, trans: TranslationBundle): string {
  const sentence = kernel.reason
    ? trans.__('This kernel does not run under the engine: %1', kernel.reason)
    : trans.__('This kernel does not run under the engine.');
  return [sentence, kernel.hint].filter(Boolean).join(' ');
}
