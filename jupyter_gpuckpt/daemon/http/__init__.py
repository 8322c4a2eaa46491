"""The routes of the daemon, and what they share.

- `daemon_handler`: the base of all handlers.
- `kernel_routes`: the routes about kernels, operations and owners, one class each.
- `remote_routes`: the routes about remotes and their content, one class each.
- `snapshot_routes`: the routes about snapshots and the store, one class each.
"""
