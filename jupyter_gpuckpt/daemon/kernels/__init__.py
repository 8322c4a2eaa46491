"""Kernels in the daemon: their records, owners, operations and streams of events."""
