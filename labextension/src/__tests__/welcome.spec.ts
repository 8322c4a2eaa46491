import type { FileBrowser } from '@jupyterlab/filebrowser';
import type { ILauncher } from '@jupyterlab/launcher';
import { CommandRegistry } from '@lumino/commands';
import { DisposableDelegate } from '@lumino/disposable';
import { Panel, Widget } from '@lumino/widgets';

import { GpuCkptApi } from '../shared/api';
import { KernelStates } from '../shared/kernel-states';
import { continueCommandId, SuspendedSessions } from '../kernel/welcome';
import { aKernel, FakeEvents, FakeServer } from './fakes';

describe('the card in the launcher and the button above files', () => {
  it('lead back to suspended kernels, and are there for them only', async () => {
    const events = new FakeEvents();
    const server = new FakeServer().on('GET kernels', { kernels: [aKernel()] });
    const states = new KernelStates(
      new GpuCkptApi(server.settings),
      events.stream
    );
    await states.refreshAll();
    const commands = new CommandRegistry();
    const open = jest.fn();
    const cards: string[] = [];
    const launcher = {
      add: ({ command }: ILauncher.IItemOptions) => {
        const text = commands.label(command);
        cards.push(text);
        return new DisposableDelegate(
          () => void cards.splice(cards.indexOf(text), 1)
        );
      }
    } as unknown as ILauncher;
    const header = new Panel();
    const browser = Object.assign(new Widget(), { header });
    const sessions = new SuspendedSessions(commands, states);
    sessions.addCommand(open);
    sessions.addCard(launcher);
    sessions.addButton(browser as unknown as FileBrowser);
    const line = header.widgets[0];
    const button = line.node.querySelector('button')!;
    expect(cards).toEqual([]);
    expect(line.isHidden).toBe(true);
    expect(commands.isEnabled(continueCommandId)).toBe(false);

    const asleep = {
      state: 'suspended',
      path: 'work/two.ipynb',
      suspended_bytes: 39e6,
      resume_seconds: 2
    } as const;
    events.tell(aKernel(asleep));
    expect(cards).toEqual(['Continue two.ipynb']);
    expect(line.isHidden).toBe(false);
    // The size would not fit into the side bar.
    expect(button.textContent).toBe('Continue two.ipynb');
    expect(button.title).toBe('two.ipynb, 39 MB of memory, about 2 s');
    await commands.execute(continueCommandId);
    expect(open).toHaveBeenCalledWith(
      expect.objectContaining({ path: 'work/two.ipynb' })
    );

    events.tell(aKernel({ ...asleep, kernel_id: 'b', path: 'b.ipynb' }));
    expect(cards).toEqual(['2 suspended sessions']);
    expect(commands.caption(continueCommandId)).toContain(
      'two.ipynb, 39 MB of memory'
    );
    expect(button.textContent).toBe('2 suspended sessions');
    expect(button.title).toContain('b.ipynb, 39 MB of memory, about 2 s');
    button.click();
    expect(open).toHaveBeenLastCalledWith(null);

    events.tell(aKernel());
    events.tell(aKernel({ kernel_id: 'b' }));
    expect(cards).toEqual([]);
    expect(line.isHidden).toBe(true);
    browser.dispose();
    events.tell(aKernel(asleep));
    expect(line.isHidden).toBe(true);
  });
});
