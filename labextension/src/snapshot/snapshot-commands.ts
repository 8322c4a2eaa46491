// The commands on a snapshot: restore, branch, make a template, compare, edit, verify, export, delete.

import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import type { SnapshotView } from '../shared/records';
import type { SnapshotActions } from './snapshot-actions';
import { refusal } from '../shared/texts';
import type { IKernelStates, ISnapshots } from '../shared/tokens';
import { trans } from '../shared/translation';

/** The actions of the commands, in the order of the menu. */
export const snapshotActions = [
  'goBack',
  'branch',
  'template',
  'compare',
  'details',
  'rename',
  'note',
  'pin',
  'verify',
  'export',
  'delete'
] as const;

export type SnapshotAction = (typeof snapshotActions)[number];

export const snapshotCommandIds: Record<SnapshotAction, string> = {
  goBack: 'gpuckpt:go-back-to-snapshot',
  branch: 'gpuckpt:branch-snapshot',
  template: 'gpuckpt:save-as-template',
  compare: 'gpuckpt:compare-snapshot',
  details: 'gpuckpt:show-snapshot',
  rename: 'gpuckpt:rename-snapshot',
  note: 'gpuckpt:annotate-snapshot',
  pin: 'gpuckpt:pin-snapshot',
  verify: 'gpuckpt:verify-snapshot',
  export: 'gpuckpt:export-snapshot',
  delete: 'gpuckpt:delete-snapshot'
};

/** The command that imports an exported snapshot into the store. */
export const importCommandId = 'gpuckpt:import-snapshot';

const ARGUMENTS = {
  type: 'object' as const,
  required: ['snapshotId'],
  properties: {
    snapshotId: {
      type: 'string' as const,
      description: 'The id of the snapshot.'
    }
  }
};

/** Add the commands. */
export function addSnapshotCommands(
  commands: CommandRegistry,
  snapshots: ISnapshots,
  states: IKernelStates,
  /** Returns whether a notebook has a kernel. */
  isBusy: (path: string) => boolean,
  actions: SnapshotActions
): void {
  const labels: Record<SnapshotAction, string> = {
    goBack: trans.__('Restore This Snapshot'),
    branch: trans.__('Branch into a New Notebook'),
    template: trans.__('Save as Template…'),
    compare: trans.__('Compare Variables with Now'),
    details: trans.__('Details'),
    rename: trans.__('Rename…'),
    note: trans.__('Edit Note…'),
    pin: trans.__('Pin'),
    verify: trans.__('Verify'),
    export: trans.__('Export'),
    delete: trans.__('Delete')
  };
  const find = ({ snapshotId }: ReadonlyPartialJSONObject) =>
    snapshots.list?.find(({ snapshot_id }) => snapshot_id === snapshotId);

  for (const action of snapshotActions) {
    const refusalOf = (args: ReadonlyPartialJSONObject) => {
      const snapshot = find(args);
      return snapshot
        ? snapshotRefusal(action, snapshot, states, isBusy)
        : trans.__('This snapshot was deleted.');
    };
    commands.addCommand(snapshotCommandIds[action], {
      label: labels[action],
      caption: args => refusalOf(args) ?? '',
      isEnabled: args => refusalOf(args) === null,
      isToggleable: action === 'pin',
      isToggled: args => action === 'pin' && (find(args)?.pinned ?? false),
      describedBy: { args: ARGUMENTS },
      execute: async args => {
        const snapshot = await snapshots.find(String(args.snapshotId));
        return snapshot && actions.run(action, snapshot);
      }
    });
  }
  commands.addCommand(importCommandId, {
    label: trans.__('Import Snapshot…'),
    caption: trans.__('Import a snapshot that was exported'),
    describedBy: { args: { type: 'object', properties: {} } },
    execute: () => actions.import()
  });
}

/** Return the reason why an action on a snapshot is not possible now; null if it is. */
export function snapshotRefusal(
  action: SnapshotAction,
  snapshot: SnapshotView,
  states: IKernelStates,
  isBusy: (path: string) => boolean
): string | null {
  const kernel = states.get(snapshot.kernel_id);
  switch (action) {
    case 'goBack':
      if (isResumed(snapshot, states)) {
        return trans.__('Resume the kernel: it continues from this snapshot.');
      }
      if (kernel) {
        return refusal('roll_back', snapshot.kernel_id, states);
      }
      return isBusy(snapshot.name)
        ? trans.__(
            'Its notebook has another kernel: shut that down first, or branch into a new notebook.'
          )
        : null;
    case 'compare':
      return kernel?.state === 'running'
        ? null
        : trans.__('Its kernel is not running.');
    case 'delete':
      return isNeeded(snapshot, states)
        ? trans.__('Its kernel is suspended and needs this snapshot.')
        : null;
    default:
      return null;
  }
}

/** Return whether the kernel has no process and is resumed from this snapshot: restoring it would be the same. */
export function isResumed(
  { kernel_id, snapshot_id }: SnapshotView,
  states: IKernelStates
): boolean {
  const kernel = states.get(kernel_id);
  return (
    (kernel?.state === 'suspended' || kernel?.state === 'lost') &&
    kernel.snapshot_id === snapshot_id
  );
}

/** Return whether a suspended kernel would be lost without this snapshot. */
export function isNeeded(
  snapshot: SnapshotView,
  states: IKernelStates
): boolean {
  const kernel = states.get(snapshot.kernel_id);
  return kernel
    ? kernel.state === 'suspended' &&
        kernel.snapshot_id === snapshot.snapshot_id
    : snapshot.needed;
}
