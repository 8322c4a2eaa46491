"""Limits of this machine that decide how large a kernel may be."""

from __future__ import annotations

import fcntl
import os
import resource
from functools import cache
from pathlib import Path

from . import privileges

#: While it dumps without copying, CRIU holds one pipe (two descriptors) per this many bytes of
#: private memory. CAP_SYS_RESOURCE lets it make pipes beyond /proc/sys/fs/pipe-max-size.
PIPE_BYTES = 1 << 20
LARGE_PIPE_BYTES = 4 << 20

#: Descriptors that CRIU needs for everything else.
RESERVED_DESCRIPTORS = 1024


def descriptors() -> tuple[int, int]:
    """The soft and the hard limit of open descriptors of this process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def dump_descriptors() -> int:
    """How many descriptors CRIU can have when it is started with the soft limit at the hard one."""
    if _may_exceed_limits():
        try:  # it raises its own limit to this
            return int(Path("/proc/sys/fs/nr_open").read_text())
        except (OSError, ValueError):
            pass
    return descriptors()[1]


def largest_skeleton_bytes() -> int:
    """The most private memory a process may have for a dump that leaves the pages to us.

    A larger one is dumped the plain way, through a directory, which takes longer.
    """
    pipe = LARGE_PIPE_BYTES if _may_exceed_limits() else PIPE_BYTES
    return max(0, (dump_descriptors() - RESERVED_DESCRIPTORS) // 2 * pipe)


@cache
def _may_exceed_limits() -> bool:
    """Return whether Linux let this process make a pipe beyond the limit, and CRIU will be as free.

    It is tried, because a user namespace has a CAP_SYS_RESOURCE too, which raises no limit. In a
    kernel's own user namespace CRIU has only that.
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
