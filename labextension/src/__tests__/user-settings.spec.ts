import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import { Signal } from '@lumino/signaling';

import schema from '../../schema/settings.json';
import { UserSettings } from '../shared/user-settings';

describe('UserSettings', () => {
  it('has the defaults of the schema, and no others', () => {
    const defaults = Object.entries(schema.properties).map(
      ([name, property]) => [name, property.default]
    );
    expect(new UserSettings().choices).toEqual(Object.fromEntries(defaults));
  });

  it('follows what the user chooses', () => {
    const registry = { composite: { showChip: false } };
    const changed = new Signal<unknown, void>({});
    const settings = new UserSettings();
    settings.follow({
      ...registry,
      changed
    } as unknown as ISettingRegistry.ISettings);
    expect(settings.choices).toMatchObject({
      showChip: false,
      showBanner: true
    });
    const heard = jest.fn();
    settings.changed.connect(heard);
    changed.emit();
    expect(heard).toHaveBeenCalledTimes(1);
  });
});
