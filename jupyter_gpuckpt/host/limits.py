"""Limits of this machine that decide how large a kernel may be."""

from __future__ import annotations

import fcntl
import os
import resource
from functools import cache
from pathlib import Path

from . import privileges

#: In a skeleton dump CRIU holds one pipe (two descriptors) per this many bytes of private memory.
#: CAP_SYS_RESOURCE lets it make larger pipes, beyond /proc/sys/fs/pipe-max-size.
PIPE_BYTES = 1 << 20
LARGE_PIPE_BYTES = 4 << 20

#: Descriptors that CRIU needs for everything else.
RESERVED_DESCRIPTORS = 1024


def descriptors() -> tuple[int, int]:
    """Return the soft and the hard limit of open descriptors of this process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def soft_descriptors(pid: int) -> int | None:
    """Return the soft limit of open descriptors of a process; None without a limit, or if the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    except OSError:
        return None
    [soft] = (line.split()[3] for line in lines if line.startswith("Max open files"))
    return int(soft) if soft.isdecimal() else None


def dump_descriptors() -> int:
    """Return how many descriptors CRIU can have: it may raise its soft limit to the hard one."""
    if _may_exceed_limits():
        try:  # CRIU raises its own limit to this
            return int(Path("/proc/sys/fs/nr_open").read_text())
        except (OSError, ValueError):
            pass
    return descriptors()[1]


def largest_skeleton_bytes() -> int:
    """Return the largest private memory, in bytes, that a process may have for a skeleton dump.

    A process with more takes a plain dump to a directory, which takes longer.
    """
    pipe = LARGE_PIPE_BYTES if _may_exceed_limits() else PIPE_BYTES
    return max(0, (dump_descriptors() - RESERVED_DESCRIPTORS) // 2 * pipe)


@cache
def _may_exceed_limits() -> bool:
    """Return whether Linux lets this process, and therefore CRIU, make a pipe beyond the limit.

    This function makes such a pipe to find out, because a CAP_SYS_RESOURCE that holds only in a user namespace raises no limit. In
    a kernel's own user namespace CRIU has only such a capability.
    """
    if not privileges.suffice():
        return False
    reading, writing = os.pipe()
    try:
        largest = int(Path("/proc/sys/fs/pipe-max-size").read_text())
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 2 * largest)
    except (OSError, ValueError):
        return False
    finally:
        os.close(reading)
        os.close(writing)
    return True
