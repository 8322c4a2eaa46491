// The plugins that show kernels outside of their notebooks: in the list of running sessions, the launcher and the status bar.

import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IFileBrowserFactory } from '@jupyterlab/filebrowser';
import { ILauncher } from '@jupyterlab/launcher';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { IStatusBar } from '@jupyterlab/statusbar';

import { commandIds } from './kernel/commands';
import { press } from './shared/press';
import { listOnce, SuspendedKernels } from './kernel/running';
import { showSessionsId } from './sessions-panel';
import { OperationStatus } from './kernel/status';
import { openNotebookId } from './snapshot/open-notebook';
import { IKernelStates } from './shared/tokens';
import { SuspendedSessions } from './kernel/welcome';

export const running: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:running',
  description: 'Lists suspended kernels in the Running panel.',
  autoStart: true,
  requires: [IKernelStates],
  // Not every application has a list of running sessions.
  optional: [IRunningSessionManagers],
  activate: (
    app: JupyterFrontEnd,
    states: IKernelStates,
    managers: IRunningSessionManagers | null
  ) => {
    const { commands, serviceManager } = app;
    const suspended = new SuspendedKernels(
      states,
      serviceManager,
      kernelId => press(commands, commandIds.resume, { kernelId }),
      path => void commands.execute(openNotebookId, { path })
    );
    if (managers) {
      managers.add(suspended);
      listOnce(managers, suspended);
    }
  }
};

export const welcome: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:welcome',
  description:
    'Leads from the launcher and from lists of files back to suspended kernels.',
  autoStart: true,
  requires: [IKernelStates],
  optional: [ILauncher, IFileBrowserFactory],
  activate: (
    app: JupyterFrontEnd,
    states: IKernelStates,
    launcher: ILauncher | null,
    files: IFileBrowserFactory | null
  ) => {
    const { commands } = app;
    const sessions = new SuspendedSessions(commands, states);
    sessions.addCommand(
      kernel =>
        void (kernel?.path.endsWith('.ipynb')
          ? commands.execute(openNotebookId, { path: kernel.path })
          : commands.execute(showSessionsId, {}))
    );
    if (launcher) {
      sessions.addCard(launcher);
    }
    files?.tracker.forEach(browser => sessions.addButton(browser));
    files?.tracker.widgetAdded.connect((_, browser) =>
      sessions.addButton(browser)
    );
  }
};

export const status: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:status',
  description: 'Shows the running operation in the status bar.',
  autoStart: true,
  requires: [IKernelStates],
  // Notebook 7 has no status bar.
  optional: [IStatusBar],
  activate: (
    app: JupyterFrontEnd,
    states: IKernelStates,
    statusBar: IStatusBar | null
  ) => {
    if (statusBar === null) {
      return;
    }
    const { commands } = app;
    const item = new OperationStatus(
      states,
      () => void commands.execute(showSessionsId)
    );
    statusBar.registerStatusItem('jupyter-gpuckpt:status', {
      item,
      align: 'left',
      rank: 100,
      isActive: () => item.isActive(),
      activeStateChanged: item.activeChanged
    });
  }
};
