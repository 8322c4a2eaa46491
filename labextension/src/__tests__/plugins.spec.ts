import type { JupyterFrontEnd } from '@jupyterlab/application';
import { ILauncher } from '@jupyterlab/launcher';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { IStatusBar } from '@jupyterlab/statusbar';

import plugins from '../index';

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

  it('work where there are no consoles', async () => {
    const consoles = plugins.find(({ id }) => id.endsWith(':consoles'));
    await consoles!.activate({} as JupyterFrontEnd, null, null, null);
  });
});
