"""Tries what the engine will ask of the operating system, and prints the answers as JSON.

A program of its own (`privileges.probe` runs it), because the attempts change the process that
makes them. Each is made in a child; what it changes ends with the child.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import signal
import sys
from collections.abc import Callable

CLONE_NEWTIME, CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x80, 0x20000, 0x10000000, 0x20000000
MS_REC_PRIVATE = 0x4000 | 0x40000
PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
KCMP_VM = 1
CALLS = {
    "x86_64": {"userfaultfd": 323, "kcmp": 312},
    "aarch64": {"userfaultfd": 282, "kcmp": 272},
}.get(platform.machine(), {})

TEXT = ctypes.create_string_buffer(b"probe")

libc = ctypes.CDLL(None, use_errno=True)


class IoVec(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def checked(result: int) -> int:
    """The result of a libc call; raises OSError if it failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def unshare(flags: int) -> None:
    """Leave some namespaces for new ones; with a word on the command line, in a user namespace of its own."""
    ids = os.geteuid(), os.getegid()
    checked(libc.unshare(flags | (CLONE_NEWUSER if sys.argv[1:] else 0)))
    if sys.argv[1:]:
        for name, text in (
            ("uid_map", f"{ids[0]} {ids[0]} 1"),
            ("setgroups", "deny"),
            ("gid_map", f"{ids[1]} {ids[1]} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def pid_namespace() -> None:
    """Make a PID namespace and its first process."""
    unshare(CLONE_NEWPID)
    child = os.fork()
    if child == 0:
        os._exit(0 if os.getpid() == 1 else 1)
    os.waitpid(child, 0)


def tmpfs() -> None:
    """Mount a tmpfs where nobody else sees it."""
    unshare(CLONE_NEWNS)
    checked(libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC_PRIVATE), None))
    checked(libc.mount(b"none", b"/tmp", b"tmpfs", ctypes.c_ulong(0), b"size=1m"))


def userfaultfd() -> None:
    """Make a userfaultfd that also serves faults met inside system calls, as CRIU does."""
    checked(libc.syscall(CALLS["userfaultfd"], os.O_CLOEXEC | os.O_NONBLOCK))


def with_child(action: Callable[[int], None]) -> None:
    """Do something to a child that waits."""
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        action(child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def ptrace(child: int) -> None:
    """Seize and interrupt a process."""
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    checked(libc.ptrace(PTRACE_SEIZE, child, None, None))
    checked(libc.ptrace(PTRACE_INTERRUPT, child, None, None))
    os.waitpid(child, 0)


def read_memory(child: int) -> None:
    """Read a text from the memory of a fork, where it lies at the same address as here."""
    copy = ctypes.create_string_buffer(len(TEXT))
    here = IoVec(ctypes.addressof(copy), len(copy))
    there = IoVec(ctypes.addressof(TEXT), len(TEXT))
    checked(libc.process_vm_readv(child, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))
    if copy.raw != TEXT.raw:
        raise OSError(errno.EIO, "read something else")


def compare(child: int) -> None:
    """Ask whether two processes share their memory."""
    checked(libc.syscall(CALLS["kcmp"], os.getpid(), child, KCMP_VM, 0, 0))


ATTEMPTS: dict[str, Callable[[], None]] = {
    "pid_namespace": pid_namespace,
    "mount_namespace": lambda: unshare(CLONE_NEWNS),
    "time_namespace": lambda: unshare(CLONE_NEWTIME),
    "tmpfs": tmpfs,
    "userfaultfd": userfaultfd,
    "ptrace": lambda: with_child(ptrace),
    "read_memory": lambda: with_child(read_memory),
    "compare": lambda: with_child(compare),
}


def attempt(action: Callable[[], None]) -> str:
    """The name of the error that `action` meets in a child process; empty if none."""
    child = os.fork()
    if child == 0:
        number = 0
        try:
            action()
        except OSError as error:
            number = error.errno or errno.EIO
        except KeyError:  # no number for this machine's system calls
            number = errno.ENOSYS
        os._exit(number)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "" if status == 0 else errno.errorcode.get(status, f"signal {-status}")


if __name__ == "__main__":
    json.dump({name: attempt(action) for name, action in ATTEMPTS.items()}, sys.stdout)
