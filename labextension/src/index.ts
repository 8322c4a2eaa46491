// The plugins, one per capability; an administrator can disable any of them.

import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import {
  CommandToolbarButton,
  ICommandPalette,
  IToolbarWidgetRegistry
} from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { SuspendedBanner } from './banner';
import { StateChip } from './chip';
import { addCommands, commandIds, kinds } from './commands';
import { KeptOutput } from './kept-output';
import { KernelStates } from './model';
import { IKernelStates } from './tokens';

export { IKernelStates } from './tokens';

/** The domain of all translations. */
const DOMAIN = 'jupyter_gpuckpt';

const states: JupyterFrontEndPlugin<IKernelStates> = {
  id: 'jupyter-gpuckpt:states',
  description: 'Knows the state of every kernel under the engine.',
  autoStart: true,
  requires: [INotebookTracker],
  provides: IKernelStates,
  activate: (app: JupyterFrontEnd, tracker: INotebookTracker) => {
    const { events, serverSettings } = app.serviceManager;
    const states = new KernelStates({ stream: events.stream, serverSettings });
    // A (re)connected kernel may be new, and events may have been lost with the connection.
    tracker.widgetAdded.connect((_, { sessionContext }) => {
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

const commands: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:commands',
  description: 'Adds the commands that save, suspend and resume a kernel.',
  autoStart: true,
  requires: [INotebookTracker, IKernelStates],
  optional: [ITranslator, ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    states: IKernelStates,
    translator: ITranslator | null,
    palette: ICommandPalette | null
  ) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    addCommands(app.commands, tracker, states, trans);
    const category = trans.__('Kernel Operations');
    for (const kind of kinds) {
      palette?.addItem({ command: commandIds[kind], category });
    }
  }
};

const toolbar: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:toolbar',
  description: 'Adds three buttons and the state chip to notebook toolbars.',
  autoStart: true,
  requires: [IKernelStates],
  optional: [ITranslator, IToolbarWidgetRegistry],
  activate: (
    app: JupyterFrontEnd,
    states: IKernelStates,
    translator: ITranslator | null,
    registry: IToolbarWidgetRegistry | null
  ) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    // Made here and not by the schema, so that each button follows its own notebook and not the current one.
    for (const kind of kinds) {
      registry?.addFactory<NotebookPanel>(
        'Notebook',
        `gpuckpt-${kind}`,
        panel =>
          new CommandToolbarButton({
            commands: app.commands,
            id: commandIds[kind],
            args: { panelId: panel.id, toolbar: true }
          })
      );
    }
    registry?.addFactory<NotebookPanel>(
      'Notebook',
      'gpuckpt-chip',
      panel => new StateChip(panel, states, trans)
    );
  }
};

const banner: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpuckpt:banner',
  description: 'Shows a notice above notebooks whose kernel is suspended.',
  autoStart: true,
  requires: [INotebookTracker, IKernelStates],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    states: IKernelStates,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    tracker.widgetAdded.connect((_, panel) => {
      const resume = () =>
        app.commands.execute(commandIds.resume, { panelId: panel.id });
      panel.contentHeader.addWidget(
        new SuspendedBanner(panel, states, trans, resume)
      );
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
  commands,
  toolbar,
  banner,
  output
];
export default plugins;
