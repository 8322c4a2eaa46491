"""Prevention of core files of the daemon, which would contain parts of kernels' memory and their keys.

The daemon stays dumpable (man 2 prctl), because it reads its own /proc. Programs that it starts for users must leave the core files
that they would leave without the daemon, so `allow` undoes the inherited settings in another process.
"""

from __future__ import annotations

import logging
import os
import resource
from pathlib import Path

_log = logging.getLogger(__name__)

#: This process's settings before `forbid`: limits, and which memory goes into a core file (man core).
_before: list[tuple[tuple[int, int], str]] = []


def forbid() -> None:
    """Disable core files of this process and its children, and keep memory out of those that are piped to a program."""
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    try:
        _before.append((limits, _filter(os.getpid()).read_text().strip()))
        resource.setrlimit(resource.RLIMIT_CORE, (0, limits[1]))
        _filter(os.getpid()).write_text("0")
    except OSError as error:  # a system without /proc/PID/coredump_filter
        _log.debug("core files: %s", error)


def allow(pid: int) -> None:
    """Give a child process the settings that this process had before `forbid`."""
    for limits, chosen in _before[:1]:
        try:
            resource.prlimit(pid, resource.RLIMIT_CORE, limits)
            _filter(pid).write_text(f"0x{chosen}")
        except OSError as error:  # it has just ended, or belongs to another user
            _log.debug("core files of process %d: %s", pid, error)


def _filter(pid: int) -> Path:
    return Path(f"/proc/{pid}/coredump_filter")
