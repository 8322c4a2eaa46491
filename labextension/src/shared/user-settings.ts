// The user's settings of this extension in JupyterLab.

import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import { Signal } from '@lumino/signaling';

import type { IChoices, IUserSettings } from './tokens';

/** The defaults of schema/settings.json, which also apply where there is no registry of settings. */
const DEFAULTS: IChoices = {
  defaultAction: 'save',
  askForTitle: false,
  confirmSuspend: false,
  confirmRollBack: true,
  confirmDelete: false,
  showChip: true,
  showBanner: true,
  notifications: 'own'
};

export class UserSettings implements IUserSettings {
  choices = DEFAULTS;

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
