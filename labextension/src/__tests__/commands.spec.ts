import { Notification } from '@jupyterlab/apputils';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { nullTranslator } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { Signal } from '@lumino/signaling';

import { addCommands, commandIds, kinds } from '../commands';
import { KernelStates } from '../model';
import { aDone, aKernel, aSave, FakeEvents, FakeServer } from './fakes';

const trans = nullTranslator.load('');

let server: FakeServer;
let events: FakeEvents;
let states: KernelStates;
let commands: CommandRegistry;

/** A notebook, as far as the commands look at it. */
function aPanel(id: string, kernelId: string): NotebookPanel {
  return {
    id,
    title: { label: `${id}.ipynb` },
    sessionContext: { session: { kernel: { id: kernelId } } }
  } as unknown as NotebookPanel;
}

function aTracker(...panels: NotebookPanel[]): INotebookTracker {
  const sender = {};
  return {
    currentWidget: panels[0] ?? null,
    currentChanged: new Signal(sender),
    widgetAdded: new Signal(sender),
    find: (test: (panel: NotebookPanel) => boolean) => panels.find(test)
  } as unknown as INotebookTracker;
}

function notifications() {
  return Notification.manager.notifications;
}

beforeEach(async () => {
  events = new FakeEvents();
  server = new FakeServer()
    .on('GET kernels', {
      kernels: [aKernel(), aKernel({ kernel_id: 'other', state: 'suspended' })]
    })
    .on('GET kernels/k', aKernel());
  states = new KernelStates({
    stream: events.stream,
    serverSettings: server.settings
  });
  await states.ready;
  commands = new CommandRegistry();
  const tracker = aTracker(aPanel('a', 'k'), aPanel('b', 'other'));
  addCommands(commands, tracker, states, trans);
});

afterEach(() => {
  Notification.dismiss();
  states.dispose();
});

describe('commands', () => {
  it.each(kinds)('%s describes its arguments', async kind => {
    const { args } = await commands.describedBy(commandIds[kind]);
    expect(args).toMatchObject({ type: 'object' });
  });

  it('follow the kernel of the current notebook', () => {
    expect(kinds.map(kind => commands.isEnabled(commandIds[kind]))).toEqual([
      true,
      true,
      false
    ]);
  });

  it('follow the kernel of the notebook whose toolbar they are in', () => {
    const args = { panelId: 'b', toolbar: true };
    expect(commands.isEnabled(commandIds.save, args)).toBe(false);
    expect(commands.isEnabled(commandIds.resume, args)).toBe(true);
    expect(commands.label(commandIds.resume, args)).toBe('');
    expect(commands.caption(commandIds.save, args)).toBe(
      'Save Kernel: This kernel is suspended.'
    );
  });

  it('are disabled without a notebook', () => {
    const none = new CommandRegistry();
    addCommands(none, aTracker(), states, trans);
    expect(kinds.some(kind => none.isEnabled(commandIds[kind]))).toBe(false);
  });

  it('ask to be drawn again when a kernel changes', () => {
    const drawn: (string | undefined)[] = [];
    commands.commandChanged.connect((_, { id }) => drawn.push(id));
    events.tell(aKernel({ state: 'suspended' }));
    expect(drawn).toEqual(Object.values(commandIds));
  });

  it('show what a success did, in the notification of the progress', async () => {
    server
      .on('POST kernels/k/suspend', aSave({ kind: 'suspend' }))
      .on('GET operations/o?wait=20', aDone({ kind: 'suspend' }));
    const done = commands.execute(commandIds.suspend);
    expect(notifications()).toMatchObject([
      { type: 'in-progress', message: 'Suspending a.ipynb…' }
    ]);
    const progress = {
      stage: 'writing',
      done_bytes: 1,
      total_bytes: 4,
      seconds: 1
    };
    events.tell(aKernel({ operation: aSave({ kind: 'suspend', progress }) }));
    expect(notifications()[0].message).toBe('Suspending a.ipynb… writing 25%');
    await done;
    expect(notifications()).toMatchObject([
      {
        type: 'success',
        message: 'Suspended a.ipynb: 412 MB stored in 0.41 s',
        options: { autoClose: 8000 }
      }
    ]);
  });

  it('show that a success came with warnings', async () => {
    const operation = aDone();
    const result = { ...operation.result, warnings: ['data.csv changed.'] };
    server.on('POST kernels/k/save', { ...operation, result });
    await commands.execute(commandIds.save);
    expect(notifications()).toMatchObject([
      { type: 'warning', options: { actions: [{ label: 'Details' }] } }
    ]);
  });

  it('show a failure, its hint and its details', async () => {
    const error = {
      message: 'The disk is full.',
      code: 'store_full',
      hint: 'Delete snapshots.',
      details: 'needed 5, free 3'
    };
    server.on('POST kernels/k/save', aSave({ state: 'failed', error }));
    await expect(commands.execute(commandIds.save)).resolves.toBeNull();
    expect(notifications()).toMatchObject([
      {
        type: 'error',
        message: 'Saving a.ipynb failed: The disk is full. Delete snapshots.',
        options: { autoClose: 30000, actions: [{ label: 'Details' }] }
      }
    ]);
  });

  it('offer no details where there are none', async () => {
    const error = { message: 'No.', code: 'x', hint: null };
    server.on('POST kernels/k/save', aSave({ state: 'failed', error }));
    await commands.execute(commandIds.save);
    expect(notifications()[0].options.actions).toEqual([]);
  });

  it('warn of a save that a suspend has cancelled', async () => {
    server.on('POST kernels/k/save', aSave({ state: 'cancelled' }));
    await commands.execute(commandIds.save);
    expect(notifications()).toMatchObject([
      { type: 'warning', message: 'Saving a.ipynb was cancelled' }
    ]);
  });

  it('show the end even if the progress was closed', async () => {
    server.on('POST kernels/k/save', aDone());
    const done = commands.execute(commandIds.save);
    Notification.dismiss();
    await done;
    expect(notifications()).toMatchObject([{ type: 'success' }]);
  });
});

it('operations started elsewhere raise no notification', () => {
  events.tell(aKernel({ state: 'saving', operation: aSave() }));
  expect(notifications()).toEqual([]);
});
