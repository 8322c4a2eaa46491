"""A program that tries the system calls of a save on one process, and prints the results as JSON.

    python -I -S attempts.py PID

It is a separate program because attempts change the process that makes them; each is made in a child process. PID is a process below
gpuckpt-init (`snapshots.trial` starts one), so that the attempts meet the conditions of a save. A result is the name of the error that
occurred, or an empty string.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
KCMP_VM = 1
#: Numbers of system calls that libc does not know (x86_64, the only machine on which kernels can be saved).
KCMP, PIDFD_GETFD = 312, 438
_SMALL = 8

libc = ctypes.CDLL(None, use_errno=True)


class IoVec(ctypes.Structure):
    """A `struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def checked(result: int) -> int:
    """Return the result of a libc call; raises OSError if it failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def ptrace(pid: int) -> None:
    """Seize and interrupt a process; it continues when its tracer exits."""
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    checked(libc.ptrace(PTRACE_SEIZE, pid, None, None))
    checked(libc.ptrace(PTRACE_INTERRUPT, pid, None, None))


def writable_area(pid: int) -> int:
    """Return the address of the first private writable mapping of a process."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        bounds, rights = line.split()[:2]
        if rights == "rw-p":
            return int(bounds.partition("-")[0], 16)
    raise OSError(errno.EFAULT, "no writable memory")


def read_memory(pid: int) -> None:
    """Read memory of a process."""
    _transfer(libc.process_vm_readv, pid)


def write_memory(pid: int) -> None:
    """Write to memory of a process, without changing it."""
    _transfer(libc.process_vm_readv, pid)
    _transfer(libc.process_vm_writev, pid)


_copy = ctypes.create_string_buffer(_SMALL)


def _transfer(call: Callable[..., int], pid: int) -> None:
    here = IoVec(ctypes.addressof(_copy), _SMALL)
    there = IoVec(writable_area(pid), _SMALL)
    if checked(call(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)) != _SMALL:
        raise OSError(errno.EFAULT, "a part only")


def compare(pid: int) -> None:
    """Ask Linux whether two processes share their memory (man kcmp)."""
    checked(libc.syscall(KCMP, os.getpid(), pid, KCMP_VM, 0, 0))


def duplicate(pid: int) -> None:
    """Duplicate a descriptor of a process."""
    pidfd = os.pidfd_open(pid)
    checked(libc.syscall(PIDFD_GETFD, pidfd, 0, 0))


def read_proc(pid: int) -> None:
    """Read files in /proc that only a process with the right to trace may read."""
    os.readlink(f"/proc/{pid}/fd/0")
    os.stat(f"/proc/{pid}/root/")
    os.listdir(f"/proc/{pid}/map_files")
    os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))


def splice(_: int) -> None:
    """Put a page of memory into a pipe, as CRIU's code does in every process."""
    _, end = os.pipe()
    page = IoVec(ctypes.addressof(_copy), _SMALL)
    libc.vmsplice.restype = ctypes.c_ssize_t
    checked(libc.vmsplice(end, ctypes.byref(page), ctypes.c_ulong(1), 0))


ATTEMPTS: dict[str, Callable[[int], None]] = {
    "ptrace": ptrace,
    "process_vm_readv": read_memory,
    "process_vm_writev": write_memory,
    "kcmp": compare,
    "pidfd_getfd": duplicate,
    "/proc": read_proc,
    "vmsplice": splice,
}


def attempt(action: Callable[[int], None], pid: int) -> str:
    """Return the name of the error that `action` raises in a child process; an empty string if it succeeds."""
    child = os.fork()
    if child == 0:
        number = 0
        try:
            action(pid)
        except OSError as error:
            number = error.errno or errno.EIO
        os._exit(number)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "" if status == 0 else errno.errorcode.get(status, f"signal {-status}")


if __name__ == "__main__":
    target = int(sys.argv[1])
    json.dump({name: attempt(action, target) for name, action in ATTEMPTS.items()}, sys.stdout)
