import type { CommandRegistry } from '@lumino/commands';
import { Token } from '@lumino/coreutils';

import type { KernelStates } from './kernel-states';
import type { Snapshots } from './snapshots';
import type { UserSettings } from './user-settings';

export type IKernelStates = Pick<KernelStates, keyof KernelStates>;

export const IKernelStates = new Token<IKernelStates>(
  'jupyter-gpuckpt:IKernelStates',
  'The state of every kernel that can be saved, and the operations on them.'
);

export type ISnapshots = Pick<Snapshots, keyof Snapshots>;

export const ISnapshots = new Token<ISnapshots>(
  'jupyter-gpuckpt:ISnapshots',
  'The snapshots of the user, and the store that they lie in.'
);

export type IUserSettings = Pick<UserSettings, 'choices' | 'changed'>;

export const IUserSettings = new Token<IUserSettings>(
  'jupyter-gpuckpt:IUserSettings',
  'What the user has chosen for the user interface of snapshots.'
);

/** The data of the panel "Sessions" and the actions of its buttons. */
export interface IPanelContext {
  states: IKernelStates;
  snapshots: ISnapshots;
  commands: CommandRegistry;
  openNotebook: (path: string) => void;
  /** Returns the path of the current notebook, or ''. */
  currentPath: () => string;
}
