// The user's settings of this extension in JupyterLab.

import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import { Signal } from '@lumino/signaling';

/** The defaults of schema/settings.json, which also apply where there is no registry of settings. */
const DEFAULTS = {
  defaultAction: 'save' as 'save' | 'suspend',
  askForTitle: false,
  confirmSuspend: false,
  confirmRollBack: true,
  confirmDelete: false,
  showChip: true,
  showBanner: true,
  notifications: 'own' as 'all' | 'own' | 'failures' | 'none'
};

/** The user's settings as they are now. */
export class UserSettings {
  choices = DEFAULTS;

  /** A signal for changes of the settings. */
  readonly changed = new Signal<this, void>(this);

  /** Follow these settings from now on. */
  follow(settings: ISettingRegistry.ISettings): void {
    const update = () => {
      this.choices = { ...DEFAULTS, ...settings.composite };
      this.changed.emit();
    };
    settings.changed.connect(update);
    update();
  }
}
