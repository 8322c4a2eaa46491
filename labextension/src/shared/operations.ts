// Runs operations and notifies the user of their progress and end, in this tab only; optionally also of the ends of others.

import { Notification } from '@jupyterlab/apputils';
import type { JSONObject } from '@lumino/coreutils';

import { asOurs, GpuCkptError } from './api';
import { mayResumeAnyway, mayResumeOlder, mayTakeOver } from './dialogs';
import { nameOfPath } from './format';
import { conclude, failureText, tellFailure, tellWithDetails } from './notices';
import { Pace } from './pace';
import type {
  IEnd,
  IOperation,
  KernelState,
  ProgressRecord,
  OperationKind
} from './records';
import {
  doneText,
  failedText,
  leftText,
  progressText,
  startedText
} from './texts';
import type { IKernelStates, IUserSettings } from './tokens';
import { trans } from './translation';

/** The kinds of operations that the server carries out by operations of other kinds. */
const MADE_OF_OTHERS: Partial<Record<OperationKind, true>> = {
  branch: true,
  roll_back: true
};

const CAN_BE_CANCELED: Partial<Record<OperationKind, true>> = {
  save: true,
  suspend: true,
  move: true
};

/** The states of a kernel in which it is so that it was suspended or moved. */
const IS_AWAY: readonly (KernelState | undefined)[] = [
  'suspending',
  'suspended',
  undefined
];

/** What the user waits for before doing something else, so that its end is always told, until it is dismissed. */
const IS_AWAITED: Partial<Record<OperationKind, true>> = { move: true };

/** The refusals after which a user may want to go on all the same, by their code: the question, and the field of the request that says so. */
const WAYS_ON: Record<
  string,
  {
    /** The operations for which that is possible; all if not given. */
    kinds?: OperationKind[];
    ask: (name: string, refusal: GpuCkptError) => Promise<boolean>;
    answer: JSONObject;
  }
> = {
  [GpuCkptError.FILES_CHANGED]: {
    ask: mayResumeAnyway,
    answer: { force: true }
  },
  [GpuCkptError.SESSION_HELD]: {
    kinds: ['resume', 'fetch'],
    ask: mayTakeOver,
    answer: { take_over: true }
  },
  [GpuCkptError.SESSION_AHEAD]: {
    kinds: ['resume'],
    ask: mayResumeOlder,
    answer: { take_over: true }
  }
};

/** An operation of whose progress a notification tells. */
interface IToldOperation {
  /** Shows the progress that events report of a kernel. */
  follow: (kernelId: string) => void;
  show: (progress: ProgressRecord) => void;
  /** Starts it, again after each refusal to which the user has answered. */
  asking: (
    kind: OperationKind,
    start: (answers: JSONObject) => Promise<IOperation>
  ) => Promise<IOperation>;
}

export interface IRunOptions {
  /** What is done before the request, while the notification is shown already. */
  before?: () => Promise<unknown>;
  body?: JSONObject;
  undo?: () => Promise<void>;
}

export class Operations {
  constructor(
    private readonly _states: IKernelStates,
    private readonly _settings: IUserSettings
  ) {
    _states.endedElsewhere.connect((_, end) => this._tellOfOther(end));
    _states.changed.connect((_, kernelId) => this._followAway(kernelId));
  }

  /**
   * Save, suspend, resume ... the kernel of the notebook `name`. `undo`: the function of the button "Undo" after a success.
   *
   * @returns the operation, or null if it failed, of which the user is notified.
   */
  run(
    kind: OperationKind,
    kernelId: string,
    name: string,
    { before, body, undo }: IRunOptions = {}
  ): Promise<IOperation | null> {
    return this._tell(
      kind,
      name,
      async ({ follow, asking }) => {
        follow(kernelId);
        await before?.();
        return asking(kind, answers =>
          this._states.run(kind, kernelId, { ...body, ...answers })
        );
      },
      undo
    );
  }

  /** Start a second kernel from a snapshot of the notebook `name`; return as `run` does. */
  branch(snapshotId: string, name: string): Promise<IOperation | null> {
    return this._tell('branch', name, ({ follow, asking }) => {
      const onStarted = ({ kernel_id }: IOperation) => follow(kernel_id);
      return asking('branch', answers =>
        this._states.runFrom('branch', snapshotId, answers, onStarted)
      );
    });
  }

  /** Follow the fetch of a snapshot of the notebook `name`; return as `run` does. */
  fetch(
    start: (answers: JSONObject) => Promise<IOperation>,
    name: string
  ): Promise<IOperation | null> {
    return this._tell('fetch', name, ({ show, asking }) =>
      asking('fetch', answers => this._states.finish(start(answers), show))
    );
  }

  /** Resume a snapshot as its own kernel, in the notebook at `path`, or in a copy if that is empty; return as `run` does. */
  resumeInto(
    path: string,
    snapshotId: string,
    name: string
  ): Promise<IOperation | null> {
    return this._tell('resume', name, ({ follow, asking }) => {
      const onStarted = ({ kernel_id }: IOperation) => follow(kernel_id);
      return asking('resume', answers =>
        this._states.runFrom(
          'resume',
          snapshotId,
          { ...(path && { path }), ...answers },
          onStarted
        )
      );
    });
  }

  /** Notify the user of the next operation on a kernel although this page does not request it. */
  expect(kernelId: string): void {
    this._expected.add(kernelId);
  }

  /**
   * Start an operation, again after each refusal to which the user has answered that it is to go on. `onQuestion`, `onAnswer`: called
   * before and after.
   */
  private async _asking(
    kind: OperationKind,
    name: string,
    start: (answers: JSONObject) => Promise<IOperation>,
    onQuestion: () => void,
    onAnswer: () => void
  ): Promise<IOperation> {
    let answers: JSONObject = {};
    for (;;) {
      try {
        return await start(answers);
      } catch (error) {
        const refusal = asOurs(error);
        const way = WAYS_ON[refusal.code];
        if (!way || way.kinds?.includes(kind) === false) {
          throw error;
        }
        onQuestion();
        if (!(await way.ask(name, refusal))) {
          throw new GpuCkptError({
            ...refusal,
            code: GpuCkptError.CANCELLED
          });
        }
        answers = { ...answers, ...way.answer };
        onAnswer();
      }
    }
  }

  private async _tell(
    kind: OperationKind,
    name: string,
    start: (told: IToldOperation) => Promise<IOperation>,
    undo?: () => Promise<void>
  ): Promise<IOperation | null> {
    const started = startedText(kind, name);
    const quiet = this._settings.choices.notifications === 'failures';
    const id = quiet
      ? ''
      : Notification.emit(started, 'in-progress', { autoClose: false });
    let followed = '';
    const show = (progress: ProgressRecord, left = '') => {
      const message = [started, progressText(progress), left];
      Notification.update({ id, message: message.filter(Boolean).join(' ') });
    };
    const pace = new Pace();
    // What users wait for begins with their press, before the server begins to work.
    let begun = performance.now();
    const cancel: Notification.IAction = {
      label: trans.__('Cancel'),
      callback: event => {
        // The notification stays open and will show the result.
        event.preventDefault();
        // An operation that has ended meanwhile cannot be canceled.
        void this._states.cancel(followed).catch(() => undefined);
      }
    };
    const showProgress = () => {
      const operation = this._states.get(followed)?.operation;
      if (operation && (operation.kind === kind || kind in MADE_OF_OTHERS)) {
        const left = pace.of(operation)?.left ?? null;
        show(operation.progress, leftText(left));
        if (kind in CAN_BE_CANCELED) {
          Notification.update({ id, actions: [cancel] });
        }
      }
    };
    this._states.changed.connect(showProgress);
    try {
      const operation = await start({
        follow: kernelId => {
          followed = kernelId;
        },
        show,
        asking: (kind, attempt) =>
          this._asking(
            kind,
            name,
            attempt,
            () => {
              const message = trans.__('%1 waits for your answer.', name);
              Notification.update({ id, message, type: 'default' });
            },
            () => {
              begun = performance.now();
              Notification.update({
                id,
                message: started,
                type: 'in-progress'
              });
            }
          )
      });
      const waited = (performance.now() - begun) / 1000;
      if (kind === 'suspend' && !this._isAway(operation.kernel_id)) {
        // A cell has resumed it before its end was reported.
        Notification.dismiss(id);
        return operation;
      }
      this._tellSuccess(id, doneText(operation, name, waited), operation, undo);
      this._followAway(operation.kernel_id);
      return operation;
    } catch (error) {
      if (!(error instanceof GpuCkptError)) {
        Notification.dismiss(id);
        throw error;
      }
      tellFailure(id, failedText(kind, name, error), error);
      return null;
    } finally {
      this._states.changed.disconnect(showProgress);
    }
  }

  private _tellOfOther(end: IEnd): void {
    const isExpected = this._expected.delete(end.kernel_id);
    // A kernel that comes back with other files computes other results, whoever has resumed it.
    const hasNews = end.kind === 'resume' && end.result?.warnings.length;
    if (
      this._settings.choices.notifications !== 'all' &&
      !isExpected &&
      !hasNews
    ) {
      return;
    }
    const name = nameOfPath(end.name);
    if (end.state === 'succeeded') {
      this._tellSuccess('', doneText(end, name), end);
    } else if (end.error) {
      const error = new GpuCkptError(end.error);
      const text = failedText(end.kind, name, error);
      tellFailure('', text, error);
    }
  }

  private _tellSuccess(
    id: string,
    message: string,
    {
      kind,
      kernel_id,
      result
    }: Pick<IOperation, 'kind' | 'kernel_id' | 'result'>,
    undo?: () => Promise<void>
  ): void {
    const warnings = result?.warnings ?? [];
    const untilDismissed = IS_AWAITED[kind] ?? false;
    let shown = '';
    if (warnings.length > 0) {
      // The first warning is shown at once, because it may name a file that the next cell reads.
      const text = untilDismissed
        ? message
        : failureText(message, warnings.slice(0, 1));
      shown = tellWithDetails(id, message, warnings, untilDismissed, text);
    } else if (
      untilDismissed ||
      this._settings.choices.notifications !== 'failures'
    ) {
      const actions = undo
        ? [{ label: trans.__('Undo'), callback: () => void undo() }]
        : [];
      shown = conclude(id, message, 'success', actions, untilDismissed);
    }
    if (shown && (kind === 'move' || kind === 'suspend')) {
      this._told.set(kernel_id, shown);
    }
    if (shown && kind === 'move' && warnings.length === 0) {
      this._closable.push(shown);
    }
  }

  /**
   * Dismiss that a kernel was suspended or moved once it runs here again: its memory is in use then. That this machine can be closed is
   * dismissed once any kernel runs here.
   */
  private _followAway(kernelId: string): void {
    if (this._isAway(kernelId)) {
      this._away.add(kernelId);
      return;
    }
    for (const id of this._closable.splice(0)) {
      Notification.dismiss(id);
    }
    if (this._away.delete(kernelId)) {
      const shown = this._told.get(kernelId);
      if (shown) {
        Notification.dismiss(shown);
        this._told.delete(kernelId);
      }
    }
  }

  private _isAway(kernelId: string): boolean {
    return IS_AWAY.includes(this._states.get(kernelId)?.state);
  }

  /** The notifications that kernels were suspended or moved, by the kernel's id. */
  private readonly _told = new Map<string, string>();
  /** The notifications that this machine can be closed. */
  private readonly _closable: string[] = [];
  /** The kernels that do not run here. The end of a suspend may be reported before that. */
  private readonly _away = new Set<string>();
  /** The kernels whose next operation leads to a notification. */
  private readonly _expected = new Set<string>();
}
