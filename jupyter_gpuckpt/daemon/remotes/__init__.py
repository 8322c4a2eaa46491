"""Remotes in the daemon: queues of uploads, leases, moves, fetches, deletions that are sent."""
