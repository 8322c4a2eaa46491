"""Remotes in the daemon: queues of uploads, leases, moves, fetches, deletions that are sent.

- `amending`: the changes of this machine's snapshots that must be sent to a remote.
- `change_sender`: the sender of changes of this machine's snapshots to a remote.
- `collecting`: the schedule of the remote collector.
- `erasing`: the work of `jupyter gpuckpt remote erase`.
- `kernel_moves`: moves of suspended kernels.
- `leases`: the leases of this daemon in all remotes.
- `listed_checks`: the daily check that remotes still list what this machine has uploaded.
- `near_copy`: the choice of snapshots whose chunks stay on this disk although remotes have them, too.
- `new_remotes`: the test of a place, the making of a store there, and the joining of an existing store.
- `pauses`: the pauses between the attempts of one kind of work with a remote that fails.
- `remote_copies`: the copies of this machine's own snapshots in remotes.
- `remote_keys`: this machine's keys for remotes.
- `sending`: the daemon's side of the process that works with a remote.
- `session_requests`: requests about the content of remotes.
- `upload_queue`: the upload queue of one remote.
- `upload_worker`: the process that uploads a snapshot, gives an upload up, sends changes of snapshots, or collects.
- `uploads`: background uploads of snapshots to remotes, one at a time per remote and the newest first.
- `without_daemon`: the work of `jupyter gpuckpt remote`, done without a daemon.
- `pruning`: the work of `jupyter gpuckpt remote prune`: the removal of snapshots of all machines from a remote, by rules that a user gives.
"""
