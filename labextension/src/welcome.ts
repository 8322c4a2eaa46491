// The card in the launcher that opens suspended sessions.

import type { ILauncher } from '@jupyterlab/launcher';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import type { IDisposable } from '@lumino/disposable';

import { formatBytes, formatSeconds } from './format';
import { suspendIcon } from './icons';
import type { IKernel } from './protocol';
import { kernelName } from './texts';
import type { IKernelStates } from './tokens';

export const continueCommandId = 'gpuckpt:continue-session';

/** Show the card while a kernel is suspended. `open` opens one session, or with null the list of all. */
export function addWelcomeCard(
  launcher: ILauncher,
  commands: CommandRegistry,
  states: IKernelStates,
  open: (kernel: IKernel | null) => void,
  trans: TranslationBundle
): void {
  const suspended = () =>
    states
      .all()
      .filter(({ state }) => state === 'suspended')
      .sort((one, other) => other.since - one.since);
  const label = () => {
    const [first, ...others] = suspended();
    if (!first) {
      return trans.__('Continue a Suspended Session');
    }
    return others.length === 0
      ? trans.__('Continue %1', sessionText(first, trans))
      : trans.__('%1 suspended sessions', others.length + 1);
  };
  commands.addCommand(continueCommandId, {
    label,
    caption: () =>
      suspended()
        .map(kernel => sessionText(kernel, trans))
        .join('\n'),
    icon: suspendIcon,
    isEnabled: () => suspended().length > 0,
    describedBy: { args: { type: 'object', properties: {} } },
    execute: () => {
      const [first, ...others] = suspended();
      if (first) {
        open(others.length === 0 ? first : null);
      }
    }
  });
  let card: IDisposable | null = null;
  let shown = '';
  const update = () => {
    const text = suspended().length > 0 ? label() : '';
    if (text !== shown) {
      shown = text;
      card?.dispose();
      // A launcher draws a card only once.
      card = text
        ? launcher.add({
            command: continueCommandId,
            category: trans.__('Other'),
            rank: -1
          })
        : null;
    }
  };
  states.changed.connect(update);
  update();
}

/** Return the line about a suspended kernel: "two.ipynb, 39 MB, about 2 s". */
function sessionText(kernel: IKernel, trans: TranslationBundle): string {
  return [
    kernelName(kernel, trans),
    kernel.suspended_bytes > 0 ? formatBytes(kernel.suspended_bytes) : '',
    kernel.resume_seconds !== null
      ? trans.__('about %1', formatSeconds(kernel.resume_seconds))
      : ''
  ]
    .filter(Boolean)
    .join(', ');
}
