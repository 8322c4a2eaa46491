import { Notification } from '@jupyterlab/apputils';
import type { Contents } from '@jupyterlab/services';
import { ServerConnection } from '@jupyterlab/services';
import { CommandRegistry } from '@lumino/commands';

import { GpuCkptApi } from '../shared/api';
import { KernelStates } from '../shared/kernel-states';
import {
  addOpenCommand,
  DeletedNotebooks,
  openNotebookId
} from '../snapshot/open-notebook';
import {
  aKernel,
  aSnapshot,
  dialog,
  FakeEvents,
  FakeServer,
  press
} from './fakes';

const PATH = 'work/deep/a.ipynb';

let files: Map<string, unknown>;
let server: FakeServer;
let commands: CommandRegistry;
let opened: string[];

beforeEach(async () => {
  files = new Map();
  opened = [];
  const contents = {
    get: async (path: string) => {
      if (!files.has(path)) {
        const gone = new Response('', { status: 404 });
        throw new ServerConnection.ResponseError(gone);
      }
    },
    save: async (path: string, model: { content?: unknown }) =>
      void files.set(path, model.content ?? 'folder')
  } as unknown as Contents.IManager;
  server = new FakeServer()
    .on('GET kernels', {
      kernels: [aKernel({ path: PATH, state: 'suspended', snapshot_id: 's' })]
    })
    .on('GET snapshots', {
      snapshots: [aSnapshot({ snapshot_id: 'newer' }), aSnapshot()]
    })
    .on('GET snapshots/s/notebook', { notebook: { cells: [1] }, modified: 1 });
  const api = new GpuCkptApi(server.settings);
  const states = new KernelStates(api, new FakeEvents().stream);
  await states.refreshAll();
  commands = new CommandRegistry();
  commands.addCommand('docmanager:open', {
    describedBy: { args: {} },
    execute: ({ path }) => opened.push(String(path))
  });
  const deleted = new DeletedNotebooks(contents, states, api);
  addOpenCommand(commands, deleted, path => path === 'open.ipynb');
});

afterEach(() => Notification.dismiss());

const open = (path = PATH) => commands.execute(openNotebookId, { path });

describe('opening a notebook', () => {
  it('asks for nothing where it is there or open', async () => {
    files.set(PATH, 'mine');
    await open();
    await open('open.ipynb');
    expect(opened).toEqual([PATH, 'open.ipynb']);
    expect(files.get(PATH)).toBe('mine');
  });

  it('brings a deleted one back from its kernel’s snapshot, with its folder', async () => {
    const done = open();
    const shown = await dialog('Bring back a.ipynb?');
    expect(shown.textContent).toContain('Its cells and outputs are in');
    press(shown, 'accept');
    await done;
    expect([...files]).toEqual([
      ['work', 'folder'],
      ['work/deep', 'folder'],
      [PATH, { cells: [1] }]
    ]);
    expect(opened).toEqual([PATH]);
  });

  it('writes over no file that came meanwhile', async () => {
    const done = open();
    const shown = await dialog('Bring back');
    ['work', 'work/deep', PATH].forEach(path => files.set(path, 'mine'));
    press(shown, 'accept');
    await done;
    expect(files.get(PATH)).toBe('mine');
    expect(opened).toEqual([PATH]);
  });

  it('writes nothing that is not wanted', async () => {
    const done = open();
    press(await dialog('Bring back'), 'reject');
    await done;
    expect([...files]).toEqual([]);
    expect(opened).toEqual([]);
  });

  it('offers an empty one where the snapshot has no cells', async () => {
    server.on('GET snapshots/s/notebook', { notebook: null, modified: 0 });
    const done = open();
    press(await dialog('An empty notebook is written'), 'accept');
    await done;
    expect(files.get(PATH)).toMatchObject({ cells: [], nbformat: 4 });
  });

  it('says that there is nothing to bring back', async () => {
    await open('other.ipynb');
    expect(opened).toEqual([]);
    expect(Notification.manager.notifications[0].message).toBe(
      'Opening other.ipynb failed: The notebook was deleted. There is no snapshot of it.'
    );
  });
});
