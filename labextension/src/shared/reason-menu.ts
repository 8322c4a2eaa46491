// A menu whose entries have tooltips: what each command does, or why it is disabled.

import { MenuSvg } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyJSONObject } from '@lumino/coreutils';
import type { VirtualElement } from '@lumino/virtualdom';
import { h } from '@lumino/virtualdom';
import type { Menu } from '@lumino/widgets';

import { tellRefusal } from './press';

/** Open a menu with these commands below `anchor`. */
export function openMenu(
  commands: CommandRegistry,
  ids: string[],
  args: ReadonlyJSONObject,
  anchor: Element
): void {
  const menu = new ReasonMenu({ commands, renderer: new ReasonRenderer() });
  menu.addClass('jp-GpuCkptMenu');
  ids.forEach(command => menu.addItem({ command, args }));
  // The menu runs its command after it is closed.
  const focused = document.activeElement;
  menu.aboutToClose.connect(() => {
    setTimeout(() => {
      menu.dispose();
      if (document.activeElement === document.body) {
        (focused as HTMLElement | null)?.focus();
      }
    }, 0);
  });
  const { left, bottom } = anchor.getBoundingClientRect();
  menu.open(left, bottom);
}

class ReasonMenu extends MenuSvg {
  /** Run the active entry's command. It may have been disabled since the menu was opened; then notify the user of the reason. */
  triggerActiveItem(): void {
    const item = this.activeItem;
    if (item?.type === 'command' && !item.isEnabled) {
      tellRefusal(item.label, item.caption);
    }
    super.triggerActiveItem();
  }
}

class ReasonRenderer extends MenuSvg.Renderer {
  renderLabel(data: Menu.IRenderData): VirtualElement {
    return h.div(
      { className: 'lm-Menu-itemLabel', title: data.item.caption },
      this.formatLabel(data)
    );
  }
}
