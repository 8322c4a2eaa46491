"""The record of a running process tree: init (PID 1 of its own namespaces, not saved), keeper (the frozen root), kernel and children."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ...wire.manifest_records import SCRATCH


class Tree(msgspec.Struct, frozen=True):
    """The pids of a kernel's processes. The daemon writes them to disk, so that the next daemon finds the processes.

    Names with `_pid` are pids in the daemon's namespace, with `_nspid` in the kernel's. `init_start` is init's start time in
    clock ticks since boot (field 22 of /proc/PID/stat), which with the pid identifies one process.
    """

    init_pid: int
    init_start: int
    keeper_pid: int
    keeper_nspid: int
    kernel_pid: int
    kernel_nspid: int
    exit_path: str

    @property
    def root(self) -> Path:
        """The path of the kernel's root directory, as seen from here (man proc, /proc/PID/root)."""
        return Path(f"/proc/{self.init_pid}/root")

    def inside(self, path: str) -> Path:
        """Translate a path of the kernel's mount namespace into one that can be opened here."""
        return self.root / path.lstrip("/")

    @property
    def scratch(self) -> Path:
        """The path of the kernel's private tmpfs, as seen from here."""
        return self.inside(SCRATCH)
