import type { JupyterFrontEnd } from '@jupyterlab/application';
import { ILauncher } from '@jupyterlab/launcher';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { IStatusBar } from '@jupyterlab/statusbar';

import plugins from '../index';
import { stateLabel } from '../shared/texts';
import { IKernelStates } from '../shared/tokens';
import { translate } from '../shared/translation';
import { aKernel } from './fakes';

jest.mock('@jupyterlab/console', () => {
  throw new Error('This application has no consoles.');
});

describe('the plugins', () => {
  it.each([ILauncher, IRunningSessionManagers, IStatusBar])(
    'work without what not every application has: %p',
    token => {
      const using = plugins.filter(({ optional }) => optional?.includes(token));
      expect(using).toHaveLength(1);
      expect(plugins.some(({ requires }) => requires?.includes(token))).toBe(
        false
      );
    }
  );

  it('have texts in the language of the page', () => {
    translate({ load: () => ({ __: () => 'Läuft' }) } as never);
    expect(stateLabel(aKernel())).toBe('Läuft');
    translate(null);
    expect(stateLabel(aKernel())).toBe('Running');
  });

  it('have texts after the plugin that sets their language', () => {
    const [first, ...others] = plugins;
    expect(first.provides).toBe(IKernelStates);
    expect(
      others
        .filter(({ requires }) => !requires?.includes(IKernelStates))
        .map(({ id }) => id.replace(/.*:/, ''))
    ).toEqual(['snapshots', 'settings', 'output']); // which have no texts
  });

  it('work where there are no consoles', async () => {
    const consoles = plugins.find(({ id }) => id.endsWith(':consoles'));
    await consoles!.activate({} as JupyterFrontEnd, null, null, null);
  });
});
