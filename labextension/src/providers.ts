// The plugins that provide kernels' states, snapshots and the user's settings. The plugins in `index.ts` show them.

import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator } from '@jupyterlab/translation';

import { GpuCkptApi, GpuCkptError } from './shared/api';
import { KernelStates } from './shared/kernel-states';
import { askAgainAfterOutages } from './kernel/reconnection';
import { IRemotes, Remotes } from './remote/remotes';
import { Snapshots } from './shared/snapshots';
import { IKernelStates, ISnapshots, IUserSettings } from './shared/tokens';
import { translate } from './shared/translation';
import { UserSettings } from './shared/user-settings';

export const states: JupyterFrontEndPlugin<IKernelStates> = {
  id: 'jupyter-gpuckpt:states',
  description: 'Knows the state of every kernel that can be saved.',
  autoStart: true,
  optional: [INotebookTracker, ITranslator],
  provides: IKernelStates,
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker | null,
    translator: ITranslator | null
  ) => {
    // All plugins that have texts require this one, so it is the first of them.
    translate(translator);
    const { events, kernels, serverSettings } = app.serviceManager;
    const api = new GpuCkptApi(serverSettings);
    const states = new KernelStates(api, events.stream);
    void states.refreshAll();
    askAgainAfterOutages(app.serviceManager, async () => {
      await states.refreshAll();
      return states.problem('')?.code !== GpuCkptError.UNREACHABLE;
    });
    // No event reports the end of a kernel whose shutdown can be undone.
    kernels.runningChanged.connect((_, models) => {
      const listed = new Set(models.map(({ id }) => id));
      if (states.all().some(({ kernel_id }) => !listed.has(kernel_id))) {
        void states.refreshAll();
      }
    });
    // A (re)connected kernel may be new, and events may have been lost with the connection.
    tracker?.widgetAdded.connect((_, { sessionContext }) => {
      sessionContext.connectionStatusChanged.connect((_, status) => {
        const kernelId = sessionContext.session?.kernel?.id;
        if (status === 'connected' && kernelId) {
          void states.refresh(kernelId);
        }
      });
    });
    return states;
  }
};

export const snapshots: JupyterFrontEndPlugin<ISnapshots> = {
  id: 'jupyter-gpuckpt:snapshots',
  description: 'Knows the snapshots of the user.',
  autoStart: true,
  provides: ISnapshots,
  activate: (app: JupyterFrontEnd) => {
    const { events, serverSettings } = app.serviceManager;
    const api = new GpuCkptApi(serverSettings);
    const snapshots = new Snapshots(api, events.stream);
    askAgainAfterOutages(app.serviceManager, async () => {
      if (snapshots.list !== null) {
        await snapshots.refresh();
      }
      return snapshots.problem?.code !== GpuCkptError.UNREACHABLE;
    });
    return snapshots;
  }
};

export const remotes: JupyterFrontEndPlugin<IRemotes> = {
  id: 'jupyter-gpuckpt:remotes',
  description: 'Knows the snapshots in the remotes.',
  autoStart: true,
  requires: [IKernelStates],
  provides: IRemotes,
  activate: (app: JupyterFrontEnd, states: IKernelStates) =>
    new Remotes(new GpuCkptApi(app.serviceManager.serverSettings), states)
};

export const settings: JupyterFrontEndPlugin<IUserSettings> = {
  id: 'jupyter-gpuckpt:settings',
  description: 'Reads what the user has chosen.',
  autoStart: true,
  optional: [ISettingRegistry],
  provides: IUserSettings,
  activate: (_: JupyterFrontEnd, registry: ISettingRegistry | null) => {
    const settings = new UserSettings();
    registry?.load('jupyter-gpuckpt:settings').then(
      loaded => settings.follow(loaded),
      reason => console.warn('The defaults are used:', reason)
    );
    return settings;
  }
};
