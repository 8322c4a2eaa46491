"""What two processes exchange or store: records, calls, statuses, names of states; no process of its own.

- `calls`: the requests to the daemon.
- `chunk_parts`: the encoding of a composed chunk's parts in manifests.
- `daemon_settings`: the settings that a daemon gets at its start.
- `deadlines`: deadlines that outlive a process and do not move when the time of day is set.
- `decoding`: decoding of bytes from files, sockets and other programs to records.
- `file_records`: the records of a snapshot that describe files on the disk.
- `hub_records`: the records that the hub's spawner keeps in its state.
- `ids`: validation of ids of kernels, snapshots, operations and owners.
- `join_line`: the line by which a machine joins a remote.
- `manager_secrets`: the secrets in the description of a kernel's manager.
- `manifest_records`: the records that describe a snapshot.
- `message_log`: files of a kernel's messages.
- `own_sockets`: the unix sockets on which a kernel listens for its clients.
- `place`: the *place* of a process.
- `plurals`: quantities in messages.
- `progress`: the progress of an operation.
- `protocol`: the version of the protocol between the daemon and its clients.
- `reclaim_records`: the records of notices that a machine will go.
- `remote_listings`: the records of the protocol about snapshots in remotes.
- `remote_records`: the records of remotes.
- `restart_records`: records about restarts that can be undone.
- `retention_policy`: the user's rules for the snapshots to keep.
- `snapshot_order`: the order of snapshots.
- `snapshot_records`: the records of the protocol about snapshots.
- `states`: the states of a kernel.
- `statuses`: HTTP status and exit code of each error.
- `stripes`: files that together hold one sequence of bytes.
"""
