"""Seccomp filters of processes: those inherited from init, and those that a process added itself."""

from __future__ import annotations

from . import processes

#: The variable that tells the preloaded library how many filters to hide from CRIU (engine/criu/preload.c).
VARIABLE = "GPUCKPT_FILTERS"


def filters(pid: int) -> int:
    """Return how many seccomp filters a process has; 0 where Linux does not report it (before 5.9) or the process is gone."""
    return int(processes.status(pid).get("Seccomp_filters", "0"))


def added(pid: int, init_pid: int) -> int:
    """Return the most filters that a thread of a process has in addition to those inherited from `init_pid`."""
    inherited = filters(init_pid)
    return max((filters(tid) for tid in processes.threads(pid)), default=inherited) - inherited
