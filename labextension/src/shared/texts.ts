// All texts for users about kernels and operations. Pure functions.

import { GpuCkptError } from './api';
import { formatBytes, formatMoment, formatSeconds, nameOfPath } from './format';
import type {
  IErrorRecord,
  KernelView,
  IOperation,
  ProgressRecord,
  KernelState,
  OperationKind
} from './records';
import type { IKernelStates } from './tokens';
import { trans } from './translation';

/** Return whether a kernel was moved for another machine and has not been resumed here since. */
export function isAtRemote({
  state,
  moved_to
}: Pick<KernelView, 'state' | 'moved_to'>): boolean {
  return state === 'suspended' && moved_to !== null;
}

/** Return the name of a kernel's state. */
export function stateLabel({ managed, state, moved_to }: KernelView): string {
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
  if (managed && isAtRemote({ state, moved_to })) {
    return trans.__('Moved');
  }
  return managed ? labels[state] : trans.__('Cannot be saved');
}

/** Return the meaning of a kernel's state, in a sentence, and in a second line a remedy. */
export function stateCaption(kernel: KernelView) {
  if (!kernel.managed) {
    return notManaged(kernel);
  }
  if (kernel.reason) {
    return [kernel.reason, kernel.hint].filter(Boolean).join('\n');
  }
  switch (kernel.state) {
    case 'suspended':
      return isAtRemote(kernel)
        ? movedText(kernel)
        : trans.__('The kernel is saved on disk and uses no memory or GPU.');
    case 'parked':
      return trans.__(
        'The kernel runs. Its GPU memory is in RAM until the next cell.'
      );
    case 'lost':
      return trans.__('The kernel’s process ended before it was suspended.');
    default:
      return trans.__('The kernel can be saved.');
  }
}

/** Return the last error of a kernel, with the time of the attempt that failed. */
export function lastErrorText(kernel: KernelView) {
  const caption = stateCaption(kernel);
  return kernel.failed_at > 0
    ? trans.__('%1: %2', formatMoment(kernel.failed_at), caption)
    : caption;
}

/** Return the name of a kernel for users. */
export function kernelName(kernel: KernelView): string {
  return nameOfPath(
    kernel.path || kernel.kernel_name || kernel.kernel_id.slice(0, 8)
  );
}

/** Return texts about a kernel's use of resources, e.g. "1.2 GB RAM", "3.4 GB GPU", "GPU 42% busy"; unknown values are left out. */
export function usageTexts(kernel: KernelView) {
  const texts: string[] = [];
  if (kernel.state === 'suspended') {
    if (kernel.suspended_bytes > 0) {
      texts.push(
        trans.__('%1 of memory saved', formatBytes(kernel.suspended_bytes))
      );
    }
    return texts;
  }
  if (kernel.memory_bytes > 0) {
    texts.push(trans.__('%1 RAM', formatBytes(kernel.memory_bytes)));
  }
  if (kernel.gpu_bytes > 0) {
    texts.push(trans.__('%1 GPU', formatBytes(kernel.gpu_bytes)));
    if (kernel.gpu_utilization !== null) {
      const percent = Math.round(kernel.gpu_utilization);
      texts.push(trans.__('GPU %1% busy', percent));
    }
  }
  return texts;
}

/** Return the reason why a kernel is suspended although its user did not request it, in a sentence; empty if the user did. */
function suspendedBecause(kernel: KernelView): string {
  switch (kernel.suspend_cause) {
    case 'idle':
      return trans.__('The kernel was idle.');
    case 'memory':
      return trans.__('Memory was short and the kernel was idle.');
    case 'shutdown':
      return trans.__('The server was stopped.');
    case 'reclaim':
      return trans.__('The machine was reclaimed.');
    case 'tool':
      return trans.__('An AI agent suspended it.');
    default:
      return '';
  }
}

function movedText({ moved_to }: KernelView): string {
  return trans.__(
    'Moved to “%1”, from where another machine can continue it.',
    moved_to ?? ''
  );
}

/** What a remote says of a moved session: the machine that runs it now, else the one that has saved it since; both may be empty. */
export interface IWhereabouts {
  runsOn: string;
  savedOn: string;
}

/** Return the last error of a kernel, as `lastErrorText` does; '' if there is none, or if `where` knows better who runs its session. */
export function currentReason(
  kernel: KernelView,
  where: IWhereabouts | null
): string {
  const isOfSession =
    kernel.error_code === GpuCkptError.SESSION_HELD ||
    kernel.error_code === GpuCkptError.SESSION_AHEAD;
  return kernel.reason && !(where && isOfSession) ? lastErrorText(kernel) : '';
}

/** Return the texts about a moved kernel. `where`: null if its remote did not say. */
export function movedTexts(kernel: KernelView, where: IWhereabouts | null) {
  if (where?.runsOn) {
    return [
      trans.__('Moved: it runs on %1 now.', where.runsOn),
      trans.__('Resume takes it over, after a question.')
    ];
  }
  if (where?.savedOn) {
    return [
      trans.__('Moved: %1 has gone on with it.', where.savedOn),
      trans.__('Resume fetches its newest state.')
    ];
  }
  return [
    movedText(kernel),
    ...(currentReason(kernel, where)
      ? []
      : [trans.__('Resume brings it back here.')])
  ];
}

/**
 * Return the texts of the banner above a suspended notebook: since when and why, the size, the duration of a resume. `where`: as in
 * `movedTexts`.
 */
export function suspendedTexts(
  kernel: KernelView,
  where: IWhereabouts | null = null
) {
  const texts = [
    kernel.since > 0
      ? trans.__('Suspended since %1.', formatMoment(kernel.since))
      : trans.__('This kernel is suspended.')
  ];
  const because = suspendedBecause(kernel);
  if (because) {
    texts.push(because);
  }
  if (kernel.suspended_bytes > 0) {
    const size = formatBytes(kernel.suspended_bytes);
    texts.push(
      kernel.resume_seconds === null
        ? trans.__('%1 of memory saved.', size)
        : trans.__(
            '%1 of memory saved. Resuming takes about %2.',
            size,
            formatSeconds(kernel.resume_seconds)
          )
    );
  }
  if (isAtRemote(kernel)) {
    return movedTexts(kernel, where);
  }
  if (kernel.reason) {
    // The last attempt has failed: nothing is promised of the next one.
    return texts;
  }
  if (kernel.cell_paused) {
    texts.push(
      kernel.continues_alone
        ? trans.__('A cell is paused; it continues when the server is back.')
        : trans.__('A cell is paused; Resume continues it.')
    );
  } else if (kernel.cells_resume) {
    texts.push(trans.__('Running a cell resumes it.'));
  } else {
    texts.push(trans.__('Press Resume before you run a cell.'));
  }
  return texts;
}

/** Return the progress of an operation in its stage, in percent; null: not known, or nothing is done yet. */
export function percentOf(progress: ProgressRecord): number | null {
  const { done_bytes, total_bytes } = progress;
  return total_bytes && done_bytes
    ? Math.min(100, Math.floor((100 * done_bytes) / total_bytes))
    : null;
}

/** Return the name of one of the server's stages. */
function stageText(stage: string): string {
  switch (stage) {
    case 'preflight':
      return trans.__('Checking');
    case 'waiting for gpu work':
      return trans.__('Waiting for the GPU');
    case 'gpu checkpoint':
    case 'gpu release':
      return trans.__('Copying GPU memory');
    case 'freeze':
      return trans.__('Pausing');
    case 'capture':
    case 'thaw':
      return trans.__('Copying memory');
    case 'store':
      return trans.__('Writing to disk');
    case 'rehearsal':
      return trans.__('Verifying');
    case 'namespaces':
    case 'images':
      return trans.__('Preparing');
    case 'restore':
    case 'pages':
    case 'audit':
    case 'gpu files':
      return trans.__('Loading memory');
    case 'gpu restore':
      return trans.__('Loading GPU memory');
    case 'fetch':
      return trans.__('Downloading');
    case 'upload':
      return trans.__('Uploading');
    case 'commit':
    case 'stop':
    case 'let go':
    case 'release':
      return trans.__('Finishing');
    default:
      return stage;
  }
}

/** Return the stage of an operation and its percentage, e.g. "Writing to disk 42%". */
export function progressText(progress: ProgressRecord): string {
  const percent = percentOf(progress);
  return [stageText(progress.stage), percent === null ? '' : `${percent}%`]
    .filter(Boolean)
    .join(' ');
}

/** Return a text about the time until the end of a stage; '' if that is not known or very short. */
export function leftText(seconds: number | null): string {
  return seconds !== null && seconds >= 2
    ? trans.__('(about %1 left)', formatSeconds(seconds))
    : '';
}

/** Return the text for a running operation on `name`. */
export function startedText(kind: OperationKind, name: string): string {
  return trans.__('%1…', workText(kind, name));
}

/** Return the text for an operation on `name`, of which another text tells the state. */
function workText(kind: OperationKind, name: string): string {
  const texts: Record<OperationKind, string> = {
    save: trans.__('Saving %1', name),
    suspend: trans.__('Suspending %1', name),
    resume: trans.__('Resuming %1', name),
    park: trans.__('Parking %1', name),
    unpark: trans.__('Unparking %1', name),
    branch: trans.__('Branching %1', name),
    roll_back: trans.__('Restoring %1', name),
    fetch: trans.__('Fetching %1', name),
    move: trans.__('Moving %1', name)
  };
  return texts[kind];
}

/**
 * Return the text for the result of a successful operation on `name`, with the memory that it freed. `waited`: for how many seconds a
 * user has waited for it; without a user it is the time that the work took.
 */
export function doneText(
  { kind, result, path }: Pick<IOperation, 'kind' | 'result' | 'path'>,
  name: string,
  waited = result?.seconds ?? 0
): string {
  if (result === null) {
    return doneInShort(kind, name);
  }
  const seconds = formatSeconds(waited);
  const gpu = formatBytes(result.gpu_bytes);
  switch (kind) {
    case 'save':
      return trans.__(
        'Saved %1: paused %2 · %3 on disk (%4 new)',
        name,
        formatSeconds(result.frozen_seconds),
        formatBytes(result.stored_bytes),
        formatBytes(result.new_bytes)
      );
    case 'suspend': {
      const ram = formatBytes(Math.max(0, result.raw_bytes - result.gpu_bytes));
      const stored = formatBytes(result.stored_bytes);
      return result.gpu_bytes > 0
        ? trans.__(
            'Suspended %1 in %5: freed %2 of GPU memory and %3 of RAM · %4 on disk',
            name,
            gpu,
            ram,
            stored,
            seconds
          )
        : trans.__(
            'Suspended %1 in %4: freed %2 of RAM · %3 on disk',
            name,
            ram,
            stored,
            seconds
          );
    }
    case 'resume':
      return trans.__('Resumed %1 in %2', name, seconds);
    case 'roll_back':
      return trans.__('Restored %1 in %2', name, seconds);
    case 'branch':
      return trans.__(
        'Branched %1 into %2 in %3',
        name,
        nameOfPath(path ?? ''),
        seconds
      );
    case 'park':
      return result.gpu_bytes > 0
        ? trans.__(
            'Parked %1 in %3: freed %2 of GPU memory',
            name,
            gpu,
            seconds
          )
        : doneInShort(kind, name);
    case 'fetch':
      return trans.__(
        'Fetched %1 in %3: %2',
        name,
        formatBytes(result.new_bytes),
        seconds
      );
    case 'move':
      return result.warnings.length
        ? trans.__(
            'Moved %1 with warnings. Read them before you shut this machine down.',
            name
          )
        : trans.__('Moved %1. It is safe to close this machine.', name);
    case 'unpark':
      return doneInShort(kind, name);
  }
}

function doneInShort(kind: OperationKind, name: string): string {
  const texts: Record<OperationKind, string> = {
    save: trans.__('Saved %1', name),
    suspend: trans.__('Suspended %1', name),
    resume: trans.__('Resumed %1', name),
    park: trans.__('Parked %1', name),
    unpark: trans.__('Unparked %1', name),
    branch: trans.__('Branched %1', name),
    roll_back: trans.__('Restored %1', name),
    fetch: trans.__('Fetched %1', name),
    move: trans.__('Moved %1', name)
  };
  return texts[kind];
}

/** Return the text for an operation on `name` that failed or was cancelled. */
export function failedText(
  kind: OperationKind,
  name: string,
  { code }: IErrorRecord
): string {
  const work = workText(kind, name);
  return code === GpuCkptError.CANCELLED
    ? trans.__('%1 was canceled', work)
    : trans.__('%1 failed', work);
}

/** Return the sentences about an error: its cause and a remedy. */
export function explain(error: IErrorRecord) {
  switch (error.code) {
    case GpuCkptError.UNREACHABLE:
      return [
        trans.__('The Jupyter server does not answer.'),
        trans.__('This page reconnects by itself.')
      ];
    case GpuCkptError.NO_EXTENSION:
      return [
        trans.__('The server extension jupyter_gpuckpt is not running.'),
        trans.__('Run `jupyter server extension list` to see why.')
      ];
    default:
      return [error.message, error.hint ?? ''].filter(Boolean);
  }
}

/** Return the reason why an operation of this `kind` on a kernel is not possible now, and in a second line a remedy; null if it is. */
export function refusal(
  kind: OperationKind,
  kernelId: string | null,
  states: IKernelStates
): string | null {
  if (kernelId === null) {
    return trans.__('This notebook has no kernel.');
  }
  const kernel = states.get(kernelId);
  if (kernel === undefined) {
    const problem = states.problem(kernelId);
    return problem
      ? explain(problem).join('\n')
      : trans.__('The state of this kernel is not known yet.');
  }
  if (!kernel.managed) {
    return notManaged(kernel);
  }
  const inFlight = states.inFlight(kernelId);
  if (inFlight !== null && !(inFlight === 'save' && kind === 'suspend')) {
    return busyText(inFlight);
  }
  if (allowed[kind].includes(kernel.state)) {
    if (kernel.state === 'lost' && kernel.snapshot_id === null) {
      return trans.__('There is no snapshot to resume this kernel from.');
    }
    // 0 is the initial value, too. A measured kernel also has a size of its memory.
    const usesNoGpu = kernel.gpu_bytes === 0 && kernel.memory_bytes > 0;
    return kind === 'park' && usesNoGpu
      ? trans.__('This kernel uses no GPU memory.')
      : null;
  }
  switch (kernel.state) {
    case 'running':
      return trans.__('This kernel is running.');
    case 'suspended':
      return trans.__('This kernel is suspended.');
    case 'parked':
      return trans.__('This kernel is parked.');
    case 'lost':
      return trans.__('This kernel was lost.');
    default:
      return trans.__('Please wait: this kernel is changing its state.');
  }
}

/** Return the text for a kernel on which an operation of this kind is in flight. */
function busyText(kind: OperationKind): string {
  const texts: Record<OperationKind, string> = {
    save: trans.__('Please wait: this kernel is being saved.'),
    suspend: trans.__('Please wait: this kernel is being suspended.'),
    resume: trans.__('Please wait: this kernel is being resumed.'),
    park: trans.__('Please wait: this kernel is being parked.'),
    unpark: trans.__('Please wait: this kernel is being unparked.'),
    branch: trans.__('Please wait: this kernel is being branched.'),
    roll_back: trans.__('Please wait: a snapshot is being restored.'),
    fetch: trans.__('Please wait: a snapshot is being fetched.'),
    move: trans.__('Please wait: this kernel is being moved.')
  };
  return texts[kind];
}

/** The states of a kernel in which each operation is possible. A suspend cancels a running save. */
const allowed: Record<OperationKind, readonly KernelState[]> = {
  save: ['running', 'parked'],
  suspend: ['running', 'parked', 'saving'],
  resume: ['suspended', 'parked', 'lost'],
  park: ['running'],
  unpark: ['parked'],
  branch: ['running', 'parked', 'suspended', 'lost'],
  roll_back: ['running', 'parked', 'suspended', 'lost'],
  // A fetch is not an operation on a kernel of this server.
  fetch: [],
  move: ['running', 'parked', 'suspended']
};

function notManaged(kernel: KernelView): string {
  const sentence = kernel.reason
    ? trans.__('This kernel cannot be saved: %1', kernel.reason)
    : trans.__('This kernel cannot be saved.');
  return [sentence, kernel.hint].filter(Boolean).join('\n');
}
