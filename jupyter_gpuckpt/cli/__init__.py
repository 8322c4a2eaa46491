"""The command line `jupyter gpuckpt`, a client of the daemon.

- `actions`: the commands' actions.
- `all_kernels`: the command `jupyter gpuckpt suspend --all`.
- `app`: the entry point of `jupyter gpuckpt`.
- `arguments`: the argument parser of `jupyter gpuckpt`.
- `branch_command`: the command `jupyter gpuckpt branch`.
- `completion`: completion by argcomplete.
- `daemon_calls`: connections of one command to the daemon, and waiting for the ends of operations.
- `diff_command`: the command `jupyter gpuckpt diff`.
- `doctor_command`: the command `jupyter gpuckpt doctor`.
- `executing`: the command `jupyter gpuckpt execute`.
- `hub_report`: the command `jupyter gpuckpt hub-report`.
- `install_kernel`: the command `jupyter gpuckpt install-kernel`.
- `mcp_command`: the command `jupyter gpuckpt mcp`.
- `naming`: resolution of the arguments that name kernels and snapshots.
- `notice`: the command `jupyter gpuckpt notice`.
- `parser`: the class of the argument parser.
- `printing`: the output of commands.
- `prune`: the command `jupyter gpuckpt prune`.
- `resuming`: the target of `resume`, and kernels that are created again from a snapshot after they ended.
- `show_command`: the command `jupyter gpuckpt show`.
- `slurm_script`: the command `jupyter gpuckpt slurm-script`.
- `snapshots`: commands for snapshots besides listing and deleting.
- `stats_command`: the command `jupyter gpuckpt stats`.
- `summary`: summaries of operations and snapshots as short texts.
- `template_command`: the command `jupyter gpuckpt template`.
"""
