// The commands: save, suspend and resume the kernel of a notebook.

import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import { icons } from './icons';
import { kernelIdOf, nameOf } from './notebooks';
import { runWithNotification } from './operations';
import type { OperationKind } from './protocol';
import { refusal } from './texts';
import type { IKernelStates } from './tokens';

export const kinds: readonly OperationKind[] = ['save', 'suspend', 'resume'];

export const commandIds: Record<OperationKind, string> = {
  save: 'gpuckpt:save-kernel',
  suspend: 'gpuckpt:suspend-kernel',
  resume: 'gpuckpt:resume-kernel'
};

/** The arguments of every command, as a JSON schema. */
const ARGUMENTS = {
  type: 'object' as const,
  properties: {
    panelId: {
      type: 'string' as const,
      description: 'The id of a notebook panel; the current one by default.'
    },
    toolbar: {
      type: 'boolean' as const,
      description: 'Whether the command is drawn in a toolbar: icon, no label.'
    }
  }
};

/** Add the three commands; they follow the notebooks' kernels. */
export function addCommands(
  commands: CommandRegistry,
  tracker: INotebookTracker,
  states: IKernelStates,
  trans: TranslationBundle
): void {
  const labels: Record<OperationKind, string> = {
    save: trans.__('Save Kernel'),
    suspend: trans.__('Suspend Kernel'),
    resume: trans.__('Resume Kernel')
  };
  const captions: Record<OperationKind, string> = {
    save: trans.__('Save the kernel’s memory and carry on'),
    suspend: trans.__('Save the kernel’s memory and stop its process'),
    resume: trans.__('Bring the suspended kernel back')
  };

  const panelOf = (args: ReadonlyPartialJSONObject): NotebookPanel | null =>
    typeof args.panelId === 'string'
      ? (tracker.find(panel => panel.id === args.panelId) ?? null)
      : tracker.currentWidget;
  const refusalOf = (kind: OperationKind, args: ReadonlyPartialJSONObject) =>
    refusal(kind, kernelIdOf(panelOf(args)), states, trans);

  for (const kind of kinds) {
    commands.addCommand(commandIds[kind], {
      label: args => (args.toolbar ? '' : labels[kind]),
      caption: args => {
        const reason = refusalOf(kind, args);
        return reason === null ? captions[kind] : `${labels[kind]}: ${reason}`;
      },
      icon: args => (args.toolbar ? icons[kind] : undefined),
      isEnabled: args => refusalOf(kind, args) === null,
      describedBy: { args: ARGUMENTS },
      execute: async args => {
        const panel = panelOf(args);
        const kernelId = kernelIdOf(panel);
        if (panel === null || kernelId === null) {
          return null;
        }
        return runWithNotification(
          kind,
          kernelId,
          nameOf(panel),
          states,
          trans
        );
      }
    });
  }

  const notify = () =>
    kinds.forEach(kind => commands.notifyCommandChanged(commandIds[kind]));
  states.changed.connect(notify);
  tracker.currentChanged.connect(notify);
  tracker.widgetAdded.connect((_, panel) => {
    panel.sessionContext.kernelChanged.connect(notify);
  });
}
