"""The routes of the daemon, and what they share.

- `daemon_handler`: the base of all handlers.
- `kernel_routes`: the answers to requests about kernels, operations and owners.
- `snapshot_routes`: the answers to requests about snapshots, the store and remotes.
"""
