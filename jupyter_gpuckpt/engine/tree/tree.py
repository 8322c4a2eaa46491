"""A running process tree: init (PID 1 of its own namespaces, not part of a snapshot), keeper (the frozen root), kernel and its children."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ...model import FORMER_SCRATCH, SCRATCH


def current(path: str) -> str:
    """Return where a path of a snapshot lies now: earlier versions had scratch in another place."""
    if path.startswith(f"{FORMER_SCRATCH}/"):
        return SCRATCH + path.removeprefix(FORMER_SCRATCH)
    return path


class Tree(msgspec.Struct, frozen=True):
    """Where a kernel's processes are. Written to disk by the daemon, so that the next daemon finds them.

    Pids ending in `_pid` are seen from the daemon's namespace; `_nspid` from inside. `init_start` is init's start time in
    clock ticks since boot (field 22 of /proc/PID/stat): with the pid it names one process for ever.
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
        """The kernel's root directory, from here (man proc, /proc/PID/root)."""
        return Path(f"/proc/{self.init_pid}/root")

    def inside(self, path: str) -> Path:
        """`path` of the kernel's mount namespace, as it can be opened from here."""
        return self.root / current(path).lstrip("/")

    @property
    def scratch(self) -> Path:
        """The kernel's private tmpfs, from here."""
        return self.inside(SCRATCH)
