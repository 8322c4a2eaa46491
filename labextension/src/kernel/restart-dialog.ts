// The question before a restart. JupyterLab's own says that all variables will be lost, which is not so where they are saved.

import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import type { ISessionContext } from '@jupyterlab/apputils';
import {
  Dialog,
  ISessionContextDialogs,
  showDialog
} from '@jupyterlab/apputils';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import type { KernelView } from '../shared/records';
import { IKernelStates } from '../shared/tokens';
import { trans } from '../shared/translation';

/** JupyterLab's setting that restarts need no confirmation; versions before 4.3 have none. */
const SETTING = [
  '@jupyterlab/apputils-extension:sessionDialogs',
  'skipKernelRestartDialog'
] as const;

export const restarts: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:restarts',
  description: 'Says before a restart that the variables are saved.',
  autoStart: true,
  requires: [IKernelStates],
  optional: [ISessionContextDialogs, ISettingRegistry, ITranslator],
  activate: (
    _: JupyterFrontEnd,
    states: IKernelStates,
    dialogs: ISessionContext.IDialogs | null,
    registry: ISettingRegistry | null,
    translator: ITranslator | null
  ) => {
    if (dialogs) {
      const theirs = (translator ?? nullTranslator).load('jupyterlab');
      correct(dialogs, states, registry, theirs);
    }
  }
};

/** Let all commands and buttons that restart a kernel ask with a text that is true of it. `theirs`: JupyterLab's texts. */
function correct(
  dialogs: ISessionContext.IDialogs,
  states: IKernelStates,
  registry: ISettingRegistry | null,
  theirs: TranslationBundle
): void {
  const restart = dialogs.restart.bind(dialogs);
  const skips = async ({ kernelPreference }: ISessionContext) => {
    const setting = await registry?.get(...SETTING).catch(() => null);
    return !!(kernelPreference.skipKernelRestartDialog || setting?.composite);
  };
  dialogs.restart = async (context, options) => {
    const kernel = context.session?.kernel;
    const body = textOf(states.get(kernel?.id ?? ''), context.name);
    if (body === null || (await skips(context))) {
      return restart(context, options);
    }
    const { button, isChecked } = await showDialog({
      title: theirs.__('Restart Kernel?'),
      body,
      buttons: [
        Dialog.cancelButton({ ariaLabel: theirs.__('Cancel Kernel Restart') }),
        Dialog.warnButton({
          label: theirs.__('Restart'),
          ariaLabel: theirs.__('Confirm Kernel Restart')
        })
      ],
      checkbox: { label: theirs.__('Do not ask me again.') }
    });
    if (!button.accept || kernel?.isDisposed) {
      return false;
    }
    if (isChecked) {
      const preference = context.kernelPreference;
      context.kernelPreference = {
        ...preference,
        skipKernelRestartDialog: true
      };
    }
    await options?.onBeforeRestart();
    await context.restartKernel();
    return true;
  };
}

/** Return what a restart of a kernel loses and saves; null if it loses all variables. */
function textOf(kernel: KernelView | undefined, name: string): string | null {
  switch (kernel?.state) {
    case 'running':
      return kernel.restart_save_seconds > 0
        ? trans.__(
            'Do you want to restart the kernel of %1? Its variables are saved in a snapshot first, for which its old process is kept while the new one starts. They are lost only if saving fails.',
            name
          )
        : null;
    case 'suspended':
      return trans.__(
        'Do you want to restart the kernel of %1? The snapshot with its variables stays in the history.',
        name
      );
    default:
      return null;
  }
}
