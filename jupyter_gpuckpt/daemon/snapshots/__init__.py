"""Snapshots in the daemon: lists, removal, deletions by users, exports and imports."""
