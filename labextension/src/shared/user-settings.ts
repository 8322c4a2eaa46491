// The user's settings of this extension in JupyterLab.

import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import type { ISignal } from '@lumino/signaling';
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
  get choices(): IChoices {
    return this._choices;
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Follow these settings from now on. */
  follow(settings: ISettingRegistry.ISettings): void {
    const update = () => {
      this._choices = { ...DEFAULTS, ...settings.composite };
      this._changed.emit();
    };
    settings.changed.connect(update);
    update();
  }

  private _choices = DEFAULTS;
  private readonly _changed = new Signal<this, void>(this);
}
