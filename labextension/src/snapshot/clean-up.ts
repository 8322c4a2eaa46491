// The command that deletes snapshots which the user does not need any more.

import type { CommandRegistry } from '@lumino/commands';

import { GpuCkptError } from '../shared/api';
import { formatBytes } from '../shared/format';
import { conclude, tellFailure } from '../shared/notices';
import type { ISnapshots } from '../shared/tokens';
import { trans } from '../shared/translation';

export const cleanUpCommandId = 'gpuckpt:clean-up';

/** Add the command. It asks which snapshots stay, and shows which ones go and what that frees. */
export function addCleanUpCommand(
  commands: CommandRegistry,
  snapshots: ISnapshots
): void {
  const { api } = snapshots;
  commands.addCommand(cleanUpCommandId, {
    label: trans.__('Clean Up Snapshots…'),
    caption: trans.__('Delete snapshots that you no longer need'),
    describedBy: { args: { type: 'object', properties: {} } },
    execute: async () => {
      const { chooseSnapshotsToKeep } = await import('./clean-up-dialog');
      const policy = await chooseSnapshotsToKeep(api);
      if (policy === null) {
        return;
      }
      try {
        const { verdicts, freed_bytes } = await api.prune(policy, false);
        const text = trans._n(
          'Deleted %1 snapshot: freed %2',
          'Deleted %1 snapshots: freed %2',
          verdicts.filter(({ removed }) => removed).length,
          formatBytes(Math.max(0, freed_bytes))
        );
        conclude('', text, 'success');
        await snapshots.refresh();
      } catch (error) {
        if (!(error instanceof GpuCkptError)) {
          throw error;
        }
        tellFailure('', trans.__('Cleaning up failed'), error);
      }
    }
  });
}
