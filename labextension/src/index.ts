// The plugins, one per capability; an administrator can disable any of them.

import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ILayoutRestorer } from '@jupyterlab/application';
import { ICommandPalette, IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import { IFileBrowserFactory } from '@jupyterlab/filebrowser';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { GpuCkptApi, GpuCkptError } from './api';
import { SuspendedBanner } from './banner';
import { StateChip } from './chip';
import { actions, addCommands, commandIds } from './commands';
import { addFetchCommand, FetchActions } from './fetch-commands';
import { KernelActions } from './kernel-actions';
import { KeptOutput } from './kept-output';
import { KernelStates } from './model';
import { Operations } from './operations';
import { askAgainAfterOutages } from './reconnection';
import { Remotes } from './remotes';
import { SuspendedKernels } from './running';
import { SessionButton } from './session-button';
import { SessionsPanel } from './sessions-panel';
import { SnapshotActions } from './snapshot-actions';
import { addSnapshotCommands, importCommandId } from './snapshot-commands';
import { Snapshots } from './snapshots';
import { OperationStatus } from './status';
import { Targets } from './targets';
import { IKernelStates, ISnapshots, IUserSettings } from './tokens';
import { UserSettings } from './user-settings';

export { IKernelStates, ISnapshots, IUserSettings } from './tokens';

/** The domain of all translations. */
const DOMAIN = 'jupyter_gpuckpt';

/** Opens the panel, where `kernelId` says, at that kernel. */
const SHOW_SESSIONS = 'gpuckpt:show-sessions';

const states: JupyterFrontEndPlugin<IKernelStates> = {
  id: 'jupyter-gpuckpt:states',
  description: 'Knows the state of every kernel under the engine.',
  autoStart: true,
  optional: [INotebookTracker],
  provides: IKernelStates,
  activate: (app: JupyterFrontEnd, tracker: INotebookTracker | null) => {
    const { events, kernels, serverSettings } = app.serviceManager;
    const api = new GpuCkptApi(serverSettings);
    const states = new KernelStates(api, events.stream);
    askAgainAfterOutages(app.serviceManager, async () => {
      await states.refreshAll();
      return states.problem('')?.code !== GpuCkptError.UNREACHABLE;
    });
    // The end of a kernel that may still be called back is no event.
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

const snapshots: JupyterFrontEndPlugin<ISnapshots> = {
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

const settings: JupyterFrontEndPlugin<IUserSettings> = {
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

const commands: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:commands',
  description: 'Adds the commands on kernels and snapshots.',
  autoStart: true,
  requires: [IKernelStates, ISnapshots, IUserSettings],
  optional: [
    INotebookTracker,
    IFileBrowserFactory,
    ITranslator,
    ICommandPalette
  ],
  activate: (
    app: JupyterFrontEnd,
    states: IKernelStates,
    snapshots: ISnapshots,
    settings: IUserSettings,
    tracker: INotebookTracker | null,
    files: IFileBrowserFactory | null,
    translator: ITranslator | null,
    palette: ICommandPalette | null
  ) => {
    const { commands, serviceManager } = app;
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const operations = new Operations(states, settings, trans);
    const openNotebook = (path: string) =>
      void commands.execute('docmanager:open', { path });
    const kernelActions = new KernelActions(
      states,
      operations,
      settings,
      kernelId => void commands.execute(SHOW_SESSIONS, { kernelId }),
      openNotebook,
      trans
    );
    const selectedPath = () =>
      files?.tracker.currentWidget?.selectedItems().next().value?.path ?? null;
    const { sessions } = serviceManager;
    const targets = new Targets(states, tracker, sessions, selectedPath, trans);
    const notify = addCommands(commands, targets, states, kernelActions, trans);
    tracker?.currentChanged.connect(notify);
    tracker?.widgetAdded.connect((_, panel) => {
      panel.sessionContext.kernelChanged.connect(notify);
    });
    const snapshotActions = new SnapshotActions(
      snapshots,
      operations,
      kernelActions,
      settings,
      trans
    );
    addSnapshotCommands(commands, snapshots, states, snapshotActions, trans);
    const fetchActions = new FetchActions(
      snapshots.api,
      operations,
      path => [...sessions.running()].some(session => session.path === path),
      openNotebook,
      trans
    );
    addFetchCommand(commands, fetchActions, trans);
    const category = trans.__('Kernel Sessions');
    for (const action of actions) {
      palette?.addItem({ command: commandIds[action], category });
    }
    palette?.addItem({ command: importCommandId, category });
  }
};

const toolbar: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:toolbar',
  description: 'Adds the split button and the state chip to notebook toolbars.',
  autoStart: true,
  requires: [IKernelStates, IUserSettings],
  optional: [ITranslator, IToolbarWidgetRegistry],
  activate: (
    app: JupyterFrontEnd,
    states: IKernelStates,
    settings: IUserSettings,
    translator: ITranslator | null,
    registry: IToolbarWidgetRegistry | null
  ) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const { commands } = app;
    // Made here and not by the schema, so that each follows its own notebook and not the current one.
    registry?.addFactory<NotebookPanel>(
      'Notebook',
      'gpuckpt-session',
      panel => new SessionButton(panel, commands, states, settings, trans)
    );
    registry?.addFactory<NotebookPanel>('Notebook', 'gpuckpt-chip', panel => {
      const showHistory = () =>
        void commands.execute(commandIds.history, { panelId: panel.id });
      return new StateChip(panel, states, settings, showHistory, trans);
    });
  }
};

const banner: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:banner',
  description: 'Shows a notice above notebooks whose kernel is suspended.',
  autoStart: true,
  requires: [INotebookTracker, IKernelStates, IUserSettings],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    states: IKernelStates,
    settings: IUserSettings,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const { commands } = app;
    tracker.widgetAdded.connect((_, panel) => {
      const execute = (id: string) =>
        void commands.execute(id, { panelId: panel.id });
      panel.contentHeader.addWidget(
        new SuspendedBanner(
          panel,
          states,
          settings,
          () => execute(commandIds.resume),
          () => execute(commandIds.history),
          trans
        )
      );
    });
  }
};

const panel: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:panel',
  description: 'Adds the side panel with all sessions and their snapshots.',
  autoStart: true,
  requires: [IKernelStates, ISnapshots],
  optional: [ITranslator, ICommandPalette, ILayoutRestorer, INotebookTracker],
  activate: (
    app: JupyterFrontEnd,
    states: IKernelStates,
    snapshots: ISnapshots,
    translator: ITranslator | null,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    tracker: INotebookTracker | null
  ) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const { commands, shell } = app;
    const openNotebook = (path: string) =>
      void commands.execute('docmanager:open', { path });
    const panel = new SessionsPanel({
      states,
      snapshots,
      remotes: new Remotes(snapshots.api),
      commands,
      openNotebook,
      currentPath: () => tracker?.currentWidget?.context.path ?? '',
      trans
    });
    tracker?.currentChanged.connect(() => panel.update());
    shell.add(panel, 'left', { rank: 350, type: 'Sessions' });
    restorer?.add(panel, panel.id);
    commands.addCommand(SHOW_SESSIONS, {
      label: trans.__('Show Sessions'),
      caption: trans.__('Show all kernels and their snapshots'),
      describedBy: {
        args: {
          type: 'object',
          properties: {
            kernelId: {
              type: ['string', 'null'],
              description: 'The id of a kernel that is to be in sight.'
            }
          }
        }
      },
      execute: ({ kernelId }) => {
        shell.activateById(panel.id);
        panel.reveal(typeof kernelId === 'string' ? kernelId : null);
      }
    });
    const category = trans.__('Kernel Sessions');
    palette?.addItem({ command: SHOW_SESSIONS, category });
  }
};

const running: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:running',
  description: 'Lists suspended kernels in the Running panel.',
  autoStart: true,
  requires: [IRunningSessionManagers, IKernelStates],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    managers: IRunningSessionManagers,
    states: IKernelStates,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const { commands, serviceManager } = app;
    managers.add(
      new SuspendedKernels(
        states,
        serviceManager,
        kernelId => void commands.execute(commandIds.resume, { kernelId }),
        path => void commands.execute('docmanager:open', { path }),
        trans
      )
    );
  }
};

const status: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:status',
  description: 'Shows the operation in flight in the status bar.',
  autoStart: true,
  requires: [IStatusBar, IKernelStates],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    statusBar: IStatusBar,
    states: IKernelStates,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const { commands } = app;
    const item = new OperationStatus(
      states,
      () => void commands.execute(SHOW_SESSIONS),
      trans
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

const output: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:output',
  description: 'Shows what a cell printed while its page was reloaded or away.',
  autoStart: true,
  requires: [INotebookTracker],
  activate: (_: JupyterFrontEnd, tracker: INotebookTracker) => {
    tracker.widgetAdded.connect((_, panel) => void new KeptOutput(panel));
  }
};

const plugins: JupyterFrontEndPlugin<unknown>[] = [
  states,
  snapshots,
  settings,
  commands,
  toolbar,
  banner,
  panel,
  running,
  status,
  output
];
export default plugins;
