"""Jupyter events about kernels, snapshots and operations; one schema file each.

- `ended_operations`: reports of ended operations, whichever client requested them.
- `kernel_events`: Jupyter events about kernels, snapshots and notices that this machine will go.
"""
