"""Snapshots in the daemon: lists, removal, deletions by users, exports and imports.

- `inflow`: a bounded pipe that passes the body of a request from the event loop to a thread that reads it.
- `inventory`: the snapshots of the store, and which of them kernels need.
- `removal`: removal of snapshots.
- `transfers`: verifications, exports and imports of whole snapshots.
- `user_deletions`: the record of users' deletions that must be sent to remotes.
"""
