"""The system calls that copy between the memory of this process and another one (man process_vm_readv)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

#: IOV_MAX: the most pieces that one call takes.
MAX_PIECES = 1024


class IoVec(ctypes.Structure):
    """A piece of memory: address and length in bytes (`struct iovec`)."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read(pid: int, local: Sequence[IoVec], remote: Sequence[IoVec]) -> int:
    """Copy from a process; return the number of bytes copied, or -1 with ctypes' errno set."""
    return _transfer("process_vm_readv", pid, local, remote)


def write(pid: int, local: Sequence[IoVec], remote: Sequence[IoVec]) -> int:
    """Copy into a process; return the number of bytes copied, or -1 with ctypes' errno set."""
    return _transfer("process_vm_writev", pid, local, remote)


def _transfer(call: str, pid: int, local: Sequence[IoVec], remote: Sequence[IoVec]) -> int:
    count = len(remote)
    pieces = IoVec * count
    return int(_function(call)(pid, pieces(*local), count, pieces(*remote), count, 0))


@cache
def _function(name: str) -> ctypes._NamedFuncPointer:
    function: ctypes._NamedFuncPointer = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype = ctypes.c_ssize_t
    function.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_ulong,
    ]
    return function
