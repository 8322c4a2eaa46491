"""Jupyter events about kernels, snapshots and operations; one schema file each."""
