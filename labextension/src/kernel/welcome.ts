// What leads back to suspended sessions: a command, its card in the launcher and its button above lists of files.

import type { FileBrowser } from '@jupyterlab/filebrowser';
import type { ILauncher } from '@jupyterlab/launcher';
import type { CommandRegistry } from '@lumino/commands';
import type { IDisposable } from '@lumino/disposable';
import { Widget } from '@lumino/widgets';

import { formatBytes, formatSeconds } from '../shared/format';
import { suspendIcon } from '../shared/icons';
import type { KernelView } from '../shared/records';
import { isAtRemote, kernelName } from '../shared/texts';
import type { IKernelStates } from '../shared/tokens';
import { trans } from '../shared/translation';

export const continueCommandId = 'gpuckpt:continue-session';

/** The label of the command that continues suspended sessions, for those who show it. */
export class SuspendedSessions {
  constructor(
    private readonly commands: CommandRegistry,
    private readonly states: IKernelStates
  ) {}

  /** Add the command. `open` opens one session, or with null the list of all. */
  addCommand(open: (kernel: KernelView | null) => void): void {
    this.commands.addCommand(continueCommandId, {
      label: () => this.label() || trans.__('Continue a Suspended Session'),
      caption: () =>
        this.all()
          .map(kernel => sessionText(kernel))
          .join('\n'),
      icon: suspendIcon,
      isEnabled: () => this.all().length > 0,
      describedBy: { args: { type: 'object', properties: {} } },
      execute: () => {
        const [first, ...others] = this.all();
        if (first) {
          open(others.length === 0 ? first : null);
        }
      }
    });
  }

  /** Show a card in the launcher while a kernel is suspended. */
  addCard(launcher: ILauncher): void {
    let card: IDisposable | null = null;
    let shown = '';
    const update = () => {
      const label = this.label();
      if (label !== shown) {
        shown = label;
        card?.dispose();
        // A launcher draws a card only once.
        card = label
          ? launcher.add({
              command: continueCommandId,
              category: trans.__('Other'),
              rank: -1
            })
          : null;
      }
    };
    this.states.changed.connect(update);
    update();
  }

  /** Show a button above a list of files while a kernel is suspended. */
  addButton(browser: FileBrowser): void {
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'jp-GpuCkptLink';
    button.onclick = () => void this.commands.execute(continueCommandId);
    const line = new Widget();
    line.addClass('jp-GpuCkptWaiting');
    line.node.append(button);
    const update = () => {
      const label = this.label();
      line.setHidden(!label);
      // A text that is set anew would make screen readers and the marks of the list work again.
      if (button.textContent !== label) {
        button.textContent = label;
      }
      button.title = this.commands.caption(continueCommandId);
    };
    this.states.changed.connect(update);
    browser.disposed.connect(() => this.states.changed.disconnect(update));
    update();
    browser.header.addWidget(line);
  }

  /** Return the label: the only suspended session, or the number of them; empty if there is none. */
  private label(): string {
    const [first, ...others] = this.all();
    if (!first) {
      return '';
    }
    return others.length === 0
      ? trans.__('Continue %1', kernelName(first))
      : trans.__('%1 suspended sessions', others.length + 1);
  }

  /** Return the suspended kernels, the last suspended one first; those that were moved are to be continued elsewhere. */
  private all(): KernelView[] {
    return this.states
      .all()
      .filter(kernel => kernel.state === 'suspended' && !isAtRemote(kernel))
      .sort((one, other) => other.since - one.since);
  }
}

/** Return the line about a suspended kernel: "two.ipynb, 39 MB of memory, about 2 s". */
function sessionText(kernel: KernelView): string {
  return [
    kernelName(kernel),
    kernel.suspended_bytes > 0
      ? trans.__('%1 of memory', formatBytes(kernel.suspended_bytes))
      : '',
    kernel.resume_seconds !== null
      ? trans.__('about %1', formatSeconds(kernel.resume_seconds))
      : ''
  ]
    .filter(Boolean)
    .join(', ');
}
