import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ISessionContext } from '@jupyterlab/apputils';

import { GpuCkptApi } from '../shared/api';
import { KernelStates } from '../shared/kernel-states';
import type { KernelView } from '../shared/records';
import { restarts } from '../kernel/restart-dialog';
import { aKernel, dialog, FakeEvents, FakeServer, press } from './fakes';

const theirs = jest.fn(() => Promise.resolve(true));
const restartKernel = jest.fn();
let setting: () => Promise<{ composite: unknown }>;
let states: KernelStates;

/** Restart this kernel by the dialogs of JupyterLab, as its commands do. */
async function restart(
  kernel: Partial<KernelView>,
  onBeforeRestart = jest.fn()
) {
  const server = new FakeServer().on('GET kernels', {
    kernels: [aKernel(kernel)]
  });
  const api = new GpuCkptApi(server.settings);
  states = new KernelStates(api, new FakeEvents().stream);
  await states.refreshAll();
  const dialogs = { restart: theirs } as Partial<ISessionContext.IDialogs>;
  const registry = { get: () => setting() };
  const app = {} as JupyterFrontEnd;
  await restarts.activate(app, states, dialogs, registry, null);
  const context = {
    name: 'a.ipynb',
    session: { kernel: { id: 'k' } },
    kernelPreference: {},
    restartKernel
  } as unknown as ISessionContext;
  return {
    done: dialogs.restart!(context, { onBeforeRestart }),
    context,
    onBeforeRestart
  };
}

describe('the question before a restart', () => {
  beforeEach(() => {
    jest.clearAllMocks();
    // JupyterLab 4.2 has no such setting.
    setting = () => Promise.reject(new Error('Key not found'));
  });

  it.each([
    [{ restart_save_seconds: 10 }, 'lost only if saving fails'],
    [{ state: 'suspended' as const }, 'stays in the history']
  ])('tells of %p what is saved', async (kernel, text) => {
    const { done, onBeforeRestart } = await restart(kernel);
    const shown = await dialog(text);
    expect(shown.textContent).not.toContain('All variables will be lost');
    press(shown, 'accept');
    expect(await done).toBe(true);
    expect(onBeforeRestart).toHaveBeenCalledTimes(1);
    expect(restartKernel).toHaveBeenCalledTimes(1);
    expect(theirs).not.toHaveBeenCalled();
  });

  it('restarts nothing if the user does not want that', async () => {
    const { done, onBeforeRestart } = await restart({
      restart_save_seconds: 10
    });
    press(await dialog('a.ipynb'), 'reject');
    expect(await done).toBe(false);
    expect(onBeforeRestart).not.toHaveBeenCalled();
    expect(restartKernel).not.toHaveBeenCalled();
  });

  it('is remembered as answered, if the user wants that', async () => {
    const { done, context } = await restart({ restart_save_seconds: 10 });
    const shown = await dialog('a.ipynb');
    shown.querySelector<HTMLInputElement>('input')!.click();
    press(shown, 'accept');
    await done;
    expect(context.kernelPreference.skipKernelRestartDialog).toBe(true);
  });

  it.each([
    ['nothing is saved', { restart_save_seconds: 0 }, false],
    ['its GPU memory is parked', { state: 'parked' as const }, false],
    ['no question is wanted', { restart_save_seconds: 10 }, true]
  ])('is left to JupyterLab where %s', async (_, kernel, composite) => {
    setting = () => Promise.resolve({ composite });
    const { done } = await restart(kernel);
    expect(await done).toBe(true);
    expect(theirs).toHaveBeenCalledTimes(1);
  });
});
