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

import { GpuCkptApi } from './shared/api';
import { SuspendedBanner } from './kernel/banner';
import { StateChip } from './kernel/chip';
import { addCleanUpCommand, cleanUpCommandId } from './snapshot/clean-up';
import { consoles } from './kernel/consoles';
import { actions, addCommands, commandIds } from './kernel/commands';
import {
  addFetchCommand,
  FetchActions,
  fetchCommandId
} from './remote/fetch-commands';
import { fileMarks } from './kernel/file-marks';
import { followIdleKernels } from './kernel/idle-notice';
import { KernelActions } from './kernel/kernel-actions';
import { followState } from './kernel/kernel-indicator';
import { KeptOutput } from './kernel/kept-output';
import { LostSessionBanner } from './kernel/lost-session';
import { checkMachine } from './machine/machine-check';
import { MachineNotices } from './machine/machine-notices';
import { hasSession, queueSaves, saveDocument } from './shared/notebooks';
import { NoticeBanner } from './machine/notice-banner';
import { Operations } from './shared/operations';
import { running, status, welcome } from './overviews';
import { press } from './shared/press';
import { remotes, settings, snapshots, states } from './providers';
import { askAgainAfterOutages } from './kernel/reconnection';
import {
  addRemoteCommands,
  addRemoteCommandId
} from './remote/new-remote-dialog';
import { IRemotes } from './remote/remotes';
import { restarts } from './kernel/restart-dialog';
import { unparkInFront } from './kernel/unpark-in-front';
import { SessionButton } from './kernel/session-button';
import { SessionsPanel, showSessionsId } from './sessions-panel';
import {
  addOpenCommand,
  DeletedNotebooks,
  openNotebookId
} from './snapshot/open-notebook';
import { SnapshotActions } from './snapshot/snapshot-actions';
import {
  addSnapshotCommands,
  importCommandId
} from './snapshot/snapshot-commands';
import { FetchedCells } from './snapshot/fetched-cells';
import { cellsOf, cellsOfFile } from './snapshot/stored-cells';
import { Targets } from './kernel/targets';
import { IKernelStates, ISnapshots, IUserSettings } from './shared/tokens';
import { Undo } from './snapshot/undo';
import { trans } from './shared/translation';

export { IKernelStates, ISnapshots, IUserSettings } from './shared/tokens';

const commands: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:commands',
  description: 'Adds the commands on kernels and snapshots.',
  autoStart: true,
  requires: [IKernelStates, ISnapshots, IUserSettings, IRemotes],
  optional: [INotebookTracker, IFileBrowserFactory, ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    states: IKernelStates,
    snapshots: ISnapshots,
    settings: IUserSettings,
    remotes: IRemotes,
    tracker: INotebookTracker | null,
    files: IFileBrowserFactory | null,
    palette: ICommandPalette | null
  ) => {
    const { commands, serviceManager, shell } = app;
    const operations = new Operations(states, settings);
    const openNotebook = (path: string) =>
      void commands.execute(openNotebookId, { path });
    const panelAt = (path: string) =>
      tracker?.find(({ context }) => context.path === path);
    const deleted = new DeletedNotebooks(
      serviceManager.contents,
      states,
      snapshots.api
    );
    addOpenCommand(commands, deleted, path => !!panelAt(path));
    const saveNotebook = async (path: string) => {
      const panel = panelAt(path);
      return panel ? saveDocument(panel.context) : true;
    };
    const reconnect = (path: string, id: string) => {
      const panel = panelAt(path);
      if (panel) {
        void panel.sessionContext.changeKernel({ id });
      } else if (path.endsWith('.ipynb')) {
        openNotebook(path);
      }
    };
    const undo = new Undo(snapshots.api, operations, reconnect);
    undo.follow(serviceManager.events.stream);
    followIdleKernels(states, snapshots.api, operations);
    void checkMachine(snapshots.api);
    const kernelActions = new KernelActions(
      snapshots.api,
      states,
      remotes,
      operations,
      settings,
      kernelId => void commands.execute(showSessionsId, { kernelId }),
      openNotebook,
      saveNotebook,
      () => commands.execute(addRemoteCommandId),
      place => commands.execute(fetchCommandId, { ...place })
    );
    const selectedPath = () =>
      files?.tracker.currentWidget?.selectedItems().next().value?.path ?? null;
    const { sessions } = serviceManager;
    const targets = new Targets(
      states,
      tracker,
      sessions,
      selectedPath,
      () => shell.currentWidget
    );
    const isBusy = (path: string) =>
      [...sessions.running()].some(session => session.path === path);
    const notify = addCommands(commands, targets, states, kernelActions);
    const look = unparkInFront(
      states,
      snapshots.api,
      () => targets.of({}).kernelId
    );
    tracker?.currentChanged.connect(notify);
    tracker?.currentChanged.connect(look);
    shell.currentChanged?.connect((_, { newValue }) => {
      look();
      if (hasSession(newValue)) {
        newValue.sessionContext.kernelChanged.connect(notify);
      }
      notify();
    });
    tracker?.widgetAdded.connect((_, panel) => {
      queueSaves(panel.context);
      panel.sessionContext.kernelChanged.connect(notify);
    });
    const snapshotActions = new SnapshotActions(
      snapshots,
      states,
      operations,
      kernelActions,
      undo,
      settings,
      () => serviceManager.kernelspecs.refreshSpecs(),
      path => cellsOf(panelAt(path))
    );
    addSnapshotCommands(commands, snapshots, states, isBusy, snapshotActions);
    const fetchedCells = new FetchedCells(snapshots.api, async path => {
      const { contents } = serviceManager;
      if (!panelAt(path) && !isBusy(path)) {
        // Opened, it would get another kernel.
        return cellsOfFile(contents, path, () => cellsOf(panelAt(path)));
      }
      const panel: NotebookPanel = await commands.execute(openNotebookId, {
        path
      });
      await panel?.context.ready;
      return cellsOf(panel);
    });
    const fetchActions = new FetchActions(
      snapshots.api,
      operations,
      states,
      (former, snapshotId) => fetchedCells.put(former, snapshotId),
      isBusy,
      openNotebook
    );
    addFetchCommand(commands, fetchActions);
    addRemoteCommands(commands, snapshots.api);
    addCleanUpCommand(commands, snapshots);
    const category = trans.__('Kernel Sessions');
    for (const action of actions) {
      palette?.addItem({ command: commandIds[action], category });
    }
    palette?.addItem({ command: importCommandId, category });
    palette?.addItem({ command: addRemoteCommandId, category });
    palette?.addItem({ command: cleanUpCommandId, category });
  }
};

const toolbar: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:toolbar',
  description: 'Adds the buttons and the state chip to notebook toolbars.',
  autoStart: true,
  requires: [IKernelStates, IUserSettings],
  optional: [IToolbarWidgetRegistry],
  activate: (
    app: JupyterFrontEnd,
    states: IKernelStates,
    settings: IUserSettings,
    registry: IToolbarWidgetRegistry | null
  ) => {
    const { commands } = app;
    // The button is made here and not by the schema, so that each one follows its own notebook and not the current one.
    registry?.addFactory<NotebookPanel>(
      'Notebook',
      'gpuckpt-session',
      panel => {
        const args = () => ({ panelId: panel.id });
        return new SessionButton(panel, args, commands, states, settings);
      }
    );
    registry?.addFactory<NotebookPanel>('Notebook', 'gpuckpt-chip', panel => {
      const showHistory = () =>
        void commands.execute(commandIds.history, { panelId: panel.id });
      const { kernels } = app.serviceManager;
      return new StateChip(panel, states, settings, showHistory, kernels);
    });
  }
};

const banner: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:banner',
  description:
    'Says above notebooks that a kernel is suspended, was taken over, or that the machine will be shut down.',
  autoStart: true,
  requires: [INotebookTracker, IKernelStates, IUserSettings, IRemotes],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    states: IKernelStates,
    settings: IUserSettings,
    remotes: IRemotes
  ) => {
    const { commands, serviceManager } = app;
    const { events, serverSettings } = serviceManager;
    const api = new GpuCkptApi(serverSettings);
    const notices = new MachineNotices(api, events.stream);
    askAgainAfterOutages(serviceManager, () => notices.refresh());
    void notices.refresh();
    tracker.widgetAdded.connect((_, panel) => {
      followState(panel, states);
      const showHistory = () =>
        void commands.execute(commandIds.history, { panelId: panel.id });
      panel.contentHeader.addWidget(new NoticeBanner(notices));
      panel.contentHeader.addWidget(
        new LostSessionBanner(panel, states, api, serviceManager.contents)
      );
      panel.contentHeader.addWidget(
        new SuspendedBanner(
          panel,
          states,
          settings,
          remotes,
          () => press(commands, commandIds.resume, { panelId: panel.id }),
          showHistory
        )
      );
    });
  }
};

const panel: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:panel',
  description: 'Adds the side panel with all sessions and their snapshots.',
  autoStart: true,
  requires: [IKernelStates, ISnapshots, IRemotes],
  optional: [ICommandPalette, ILayoutRestorer, INotebookTracker],
  activate: (
    app: JupyterFrontEnd,
    states: IKernelStates,
    snapshots: ISnapshots,
    remotes: IRemotes,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    tracker: INotebookTracker | null
  ) => {
    const { commands, shell } = app;
    const openNotebook = (path: string) =>
      void commands.execute(openNotebookId, { path });
    commands.commandExecuted.connect((_, { id, result }) => {
      if (id === addRemoteCommandId) {
        result.then(
          added => added !== null && void remotes.refresh(),
          () => undefined // reported by the command
        );
      }
    });
    const panel = new SessionsPanel({
      states,
      snapshots,
      remotes,
      commands,
      openNotebook,
      currentPath: () => tracker?.currentWidget?.context.path ?? '',
      leave: () => shell.currentWidget?.activate()
    });
    tracker?.currentChanged.connect(() => panel.update());
    // The snapshots that can be restored depend on the notebooks that have a kernel.
    app.serviceManager.sessions.runningChanged.connect(() => panel.update());
    shell.add(panel, 'left', { rank: 350, type: 'Sessions' });
    restorer?.add(panel, panel.id);
    commands.addCommand(showSessionsId, {
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
    palette?.addItem({ command: showSessionsId, category });
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
  remotes,
  settings,
  commands,
  restarts,
  toolbar,
  banner,
  consoles,
  panel,
  running,
  welcome,
  fileMarks,
  status,
  output
];
export default plugins;
