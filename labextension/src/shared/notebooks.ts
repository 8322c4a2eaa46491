// Queries of open notebooks and consoles for the plugins.

import type { ISessionContext } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { ISignal } from '@lumino/signaling';
import type { Widget } from '@lumino/widgets';

import type { IKernelStates, IUserSettings } from './tokens';

/** How long a server that holds documents may take to save one, in milliseconds. */
const SERVER_SAVES = 5000;

/** A panel with a kernel: a notebook or a console. */
export interface ISessionPanel {
  readonly sessionContext: ISessionContext;
  readonly disposed: ISignal<this, void>;
  /** Give it the focus. */
  activate(): void;
  toggleClass(name: string, force: boolean): boolean;
}

/** Return the id of the kernel to which a notebook or a console is connected. */
export function kernelIdOf(panel: ISessionPanel | null): string | null {
  return panel?.sessionContext.session?.kernel?.id ?? null;
}

/** Return whether a widget is a notebook or a console. */
export function hasSession<T extends Widget>(
  widget: T | null
): widget is T & ISessionPanel {
  return !!widget && 'sessionContext' in widget;
}

/** Call `react` now, after every possible change of the panel's kernel and of the settings, until the panel is closed. */
export function watchKernel(
  panel: ISessionPanel,
  states: IKernelStates,
  react: () => void,
  settings?: IUserSettings
): void {
  const onChanged = (_: IKernelStates, kernelId: string) => {
    if (kernelId === '' || kernelId === kernelIdOf(panel)) {
      react();
    }
  };
  states.changed.connect(onChanged);
  settings?.changed.connect(react);
  const { kernelChanged, statusChanged, connectionStatusChanged } =
    panel.sessionContext;
  const signals = [kernelChanged, statusChanged, connectionStatusChanged];
  signals.forEach(signal => signal.connect(react));
  panel.disposed.connect(() => {
    states.changed.disconnect(onChanged);
    settings?.changed.disconnect(react);
    signals.forEach(signal => signal.disconnect(react));
  });
  react();
}

/** A document that JupyterLab has open. */
type Document = NotebookPanel['context'];

/** The last save of each document that has not ended: whether it succeeds. Null if there is none. */
const running = new WeakMap<Pick<Document, 'save'>, Promise<boolean> | null>();

/**
 * Let each save of a document, whoever starts it, wait for the one before it.
 *
 * JupyterLab takes what a save that has not ended writes for a change by somebody else, and asks which of both files to keep.
 */
export function queueSaves(context: Pick<Document, 'save'>): void {
  if (running.has(context)) {
    return; // this is a second view of the document
  }
  running.set(context, null);
  const save = context.save;
  context.save = (...args) => {
    const previous = Promise.resolve(running.get(context));
    const saving = previous.then(() => save.apply(context, args));
    const end: Promise<boolean> = saving
      .then(
        () => true,
        () => false
      )
      .then(isSaved => {
        if (running.get(context) === end) {
          running.set(context, null);
        }
        return isSaved;
      });
    running.set(context, end);
    return saving;
  };
}

/** Save a document that has changes; return false if that failed, which JupyterLab itself reports. */
export async function saveDocument(
  context: Pick<Document, 'model' | 'save'>
): Promise<boolean> {
  const { model } = context;
  if (model.collaborative) {
    // The server that holds it saves it by itself soon. If the page did so at that moment, JupyterLab would ask which of both files to keep.
    await isClean(model);
  }
  if ((await running.get(context)) === false) {
    return !model.dirty; // it has failed just now, and the user knows
  }
  if (model.dirty) {
    await context.save().catch(() => undefined);
  }
  return !model.dirty;
}

/** Wait until a document has no changes that are not saved, or for `SERVER_SAVES`. */
async function isClean(model: Document['model']) {
  if (!model.dirty) {
    return;
  }
  await new Promise<void>(resolve => {
    const end = () => {
      clearTimeout(timer);
      model.stateChanged.disconnect(look);
      resolve();
    };
    const look = () => model.dirty || end();
    const timer = setTimeout(end, SERVER_SAVES);
    model.stateChanged.connect(look);
  });
}
