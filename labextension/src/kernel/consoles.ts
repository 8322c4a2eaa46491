// Code consoles: the same button, chip and banner as for notebooks.

import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import type { ConsolePanel } from '@jupyterlab/console';

import { IRemotes } from '../remote/remotes';
import { SuspendedBanner } from './banner';
import { StateChip } from './chip';
import { commandIds } from './commands';
import { followState } from './kernel-indicator';
import { kernelIdOf } from '../shared/notebooks';
import { press } from '../shared/press';
import { SessionButton } from './session-button';
import { IKernelStates, IUserSettings } from '../shared/tokens';

export const consoles: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:consoles',
  description: 'Shows the state of their kernels in code consoles.',
  autoStart: true,
  requires: [IKernelStates, IUserSettings, IRemotes],
  activate: async (
    app: JupyterFrontEnd,
    states: IKernelStates,
    settings: IUserSettings,
    remotes: IRemotes
  ) => {
    // Loaded here, because an import at the top would prevent all other plugins where an application has no consoles.
    const module = await import('@jupyterlab/console').catch(() => null);
    const tracker =
      module && (await app.resolveOptionalService(module.IConsoleTracker));
    const { commands, serviceManager } = app;
    const equip = (panel: ConsolePanel) => {
      followState(panel, states);
      const args = () => ({ kernelId: kernelIdOf(panel) ?? '' });
      const resume = () => press(commands, commandIds.resume, args());
      const history = () => void commands.execute(commandIds.history, args());
      panel.toolbar.addItem(
        'gpuckpt-session',
        new SessionButton(panel, args, commands, states, settings)
      );
      panel.toolbar.addItem(
        'gpuckpt-chip',
        new StateChip(panel, states, settings, history, serviceManager.kernels)
      );
      panel.contentHeader.addWidget(
        new SuspendedBanner(panel, states, settings, remotes, resume, history)
      );
    };
    tracker?.forEach(equip);
    tracker?.widgetAdded.connect((_, panel) => equip(panel));
  }
};
