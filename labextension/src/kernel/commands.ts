// The commands on a kernel: save, suspend, resume, park, branch, and a command that shows its snapshots.

import type { LabIcon } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import {
  branchIcon,
  historyIcon,
  parkIcon,
  resumeIcon,
  saveIcon,
  suspendIcon
} from '../shared/icons';
import type { KernelActions } from './kernel-actions';
import { isShortcut, tellRefusal } from '../shared/press';
import type { OperationKind } from '../shared/records';
import type { ITarget, Targets } from './targets';
import { ARGUMENTS } from './targets';
import { refusal } from '../shared/texts';
import type { IKernelStates } from '../shared/tokens';
import { trans } from '../shared/translation';

/** The actions of the commands, in the order of all menus. */
export const actions = [
  'save',
  'saveAs',
  'suspend',
  'resume',
  'park',
  'branch',
  'move',
  'history'
] as const;

export type Action = (typeof actions)[number];

export const commandIds: Record<Action, string> = {
  save: 'gpuckpt:save-kernel',
  saveAs: 'gpuckpt:save-kernel-as',
  suspend: 'gpuckpt:suspend-kernel',
  resume: 'gpuckpt:resume-kernel',
  park: 'gpuckpt:park-kernel',
  branch: 'gpuckpt:branch-kernel',
  move: 'gpuckpt:move-kernel',
  history: 'gpuckpt:show-history'
};

export const icons: Partial<Record<Action, LabIcon>> = {
  save: saveIcon,
  suspend: suspendIcon,
  resume: resumeIcon,
  park: parkIcon,
  branch: branchIcon,
  history: historyIcon
};

/** The operation that must be possible for an action. */
const needed: Partial<Record<Action, OperationKind>> = {
  save: 'save',
  saveAs: 'save',
  suspend: 'suspend',
  resume: 'resume',
  park: 'park',
  branch: 'branch',
  move: 'move'
};

/** Return the React key of an action's button. Suspend and Resume share one, so that the button that was pressed keeps the focus. */
export function buttonKey(action: Action): Action {
  return action === 'resume' ? 'suspend' : action;
}

/** Return the label of an action. */
export function actionLabel(action: Action): string {
  const labels: Record<Action, string> = {
    save: trans.__('Save Snapshot'),
    saveAs: trans.__('Save Snapshot As…'),
    suspend: trans.__('Suspend Kernel'),
    resume: trans.__('Resume Kernel'),
    park: trans.__('Park Kernel (Free GPU, Keep in RAM)'),
    branch: trans.__('Branch into a New Notebook'),
    move: trans.__('Move to Another Machine…'),
    history: trans.__('Snapshot History')
  };
  return labels[action];
}

function actionCaption(action: Action): string {
  const captions: Record<Action, string> = {
    save: trans.__('Save a snapshot (kernel keeps running)'),
    saveAs: trans.__('Save a snapshot with a name, which pins it'),
    suspend: trans.__(
      'Save the kernel to disk and stop it, which frees its memory and GPU'
    ),
    resume: trans.__('Continue the kernel where it was suspended'),
    park: trans.__('Move GPU memory to RAM until the next cell'),
    branch: trans.__(
      'Start a second kernel with this state, in a copy of the notebook'
    ),
    move: trans.__(
      'Suspend the kernel and upload it, so that another machine can continue it'
    ),
    history: trans.__('Show the snapshots of this kernel')
  };
  return captions[action];
}

/** Add the commands. Return a function to call after changes other than those of kernels, e.g. of the current notebook. */
export function addCommands(
  commands: CommandRegistry,
  targets: Targets,
  states: IKernelStates,
  kernelActions: KernelActions
): () => void {
  const refusalOf = (action: Action, { kernelId }: ITarget) => {
    const kind = needed[action];
    return kind ? refusal(kind, kernelId, states) : null;
  };
  // A file's menu shows enabled commands only.
  const isVisible = (action: Action, args: ReadonlyPartialJSONObject) => {
    const target = args.selectedFile ? targets.of(args) : null;
    return (
      target === null ||
      (target.kernelId !== null && refusalOf(action, target) === null)
    );
  };

  for (const action of actions) {
    const label = actionLabel(action);
    commands.addCommand(commandIds[action], {
      label,
      icon: icons[action],
      caption: args => {
        const reason = refusalOf(action, targets.of(args));
        return reason === null ? actionCaption(action) : `${label}: ${reason}`;
      },
      isEnabled: args =>
        isShortcut(args) || refusalOf(action, targets.of(args)) === null,
      isVisible: args => isVisible(action, args),
      describedBy: { args: ARGUMENTS },
      execute: args => {
        const target = targets.of(args);
        const reason = isShortcut(args) ? refusalOf(action, target) : null;
        if (reason !== null) {
          tellRefusal(label, reason);
          return null;
        }
        return kernelActions.run(action, target);
      }
    });
  }

  const notify = () =>
    actions.forEach(action =>
      commands.notifyCommandChanged(commandIds[action])
    );
  states.changed.connect(notify);
  return notify;
}
