import type { ILauncher } from '@jupyterlab/launcher';
import { nullTranslator } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { DisposableDelegate } from '@lumino/disposable';

import { GpuCkptApi } from '../api';
import { KernelStates } from '../model';
import { addWelcomeCard, continueCommandId } from '../welcome';
import { aKernel, FakeEvents, FakeServer } from './fakes';

describe('the card in the launcher', () => {
  it('leads back to suspended kernels, and is there for them only', async () => {
    const events = new FakeEvents();
    const server = new FakeServer().on('GET kernels', { kernels: [aKernel()] });
    const states = new KernelStates(
      new GpuCkptApi(server.settings),
      events.stream
    );
    await states.ready;
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
    addWelcomeCard(launcher, commands, states, open, nullTranslator.load(''));
    expect(cards).toEqual([]);
    expect(commands.isEnabled(continueCommandId)).toBe(false);

    const asleep = {
      state: 'suspended',
      path: 'work/two.ipynb',
      suspended_bytes: 39e6,
      resume_seconds: 2
    } as const;
    events.tell(aKernel(asleep));
    expect(cards).toEqual(['Continue two.ipynb, 39 MB, about 2 s']);
    await commands.execute(continueCommandId);
    expect(open).toHaveBeenCalledWith(
      expect.objectContaining({ path: 'work/two.ipynb' })
    );

    events.tell(aKernel({ ...asleep, kernel_id: 'b', path: 'b.ipynb' }));
    expect(cards).toEqual(['2 suspended sessions']);
    expect(commands.caption(continueCommandId)).toContain('two.ipynb, 39 MB');
    await commands.execute(continueCommandId);
    expect(open).toHaveBeenLastCalledWith(null);

    events.tell(aKernel());
    events.tell(aKernel({ kernel_id: 'b' }));
    expect(cards).toEqual([]);
    states.dispose();
  });
});
