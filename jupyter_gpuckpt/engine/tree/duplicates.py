"""Duplicates of other processes' descriptors (man pidfd_getfd)."""

from __future__ import annotations

import ctypes
import os
import socket
from functools import cache

_NR_PIDFD_GETFD = 438


def duplicate(pid: int, descriptor: int) -> int:
    """Return a descriptor of this process for the same open file. Raises OSError."""
    pidfd = os.pidfd_open(pid)
    try:
        ours = int(_libc().syscall(_NR_PIDFD_GETFD, pidfd, descriptor, 0))
        if ours < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"pidfd_getfd: {os.strerror(number)}")
    finally:
        os.close(pidfd)
    return ours


@cache
def _libc() -> ctypes.CDLL:
    # Making this object takes ten times as long as the call.
    return ctypes.CDLL(None, use_errno=True)


def duplicate_socket(pid: int, descriptor: int) -> socket.socket:
    """Return a socket of this process that is the same as another process's. Raises OSError."""
    return socket.socket(fileno=duplicate(pid, descriptor))
