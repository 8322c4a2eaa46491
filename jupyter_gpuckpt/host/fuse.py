"""File systems in user space (FUSE): which processes serve them, and the end of a connection to a server that does not answer.

A process that closes a file of such a file system waits for its server, and no signal ends this wait (fs/fuse/dev.c,
`request_wait_answer`). It ends if the server answers, if the connection to it is aborted, or if no process has the server's /dev/fuse
open any more (Documentation/filesystems/fuse/fuse.rst).
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import processes

#: The device numbers of /dev/fuse and /dev/cuse (Documentation/admin-guide/devices.txt).
_DEVICES = (os.makedev(10, 229), os.makedev(10, 203))
_CONNECTION = re.compile(r"^fuse_connection:\s*(\d+)$", re.MULTILINE)
_NR_STATX, _AT_FDCWD, _AT_STATX_DONT_SYNC = 332, -100, 0x4000
#: Where fusectl is mounted on most machines.
_USUAL = "/sys/fs/fuse/connections"
#: Of struct statx: its size, and where the two numbers of the file's device are.
_STATX_BYTES, _STATX_DEVICE = 256, slice(0x88, 0x90)
_NR_FSOPEN, _NR_FSCONFIG, _NR_FSMOUNT = 430, 431, 432
_FSOPEN_CLOEXEC, _FSCONFIG_CMD_CREATE, _FSMOUNT_CLOEXEC = 1, 6, 1


def serves(pid: int) -> bool:
    """Return whether a process is a server: it has /dev/fuse or /dev/cuse open, under any name."""
    return any(True for _ in _devices(pid))


def abort_waiting(pids: Iterable[int]) -> list[str]:
    """Abort the connections for whose servers something waits, of the file systems on which these processes have files.

    Return a text for each, which names a file and the server. Where no connection can be aborted, those servers are killed that are
    among `pids`.
    """
    pids = list(pids)
    try:
        with _control() as folder:
            return [
                f"{path} ({_named(servers) or 'its server is not known'})"
                for number, path in files(pids).items()
                if _waits(folder, number)
                for servers in [_servers(number)]
                if _abort(folder, number, servers)
            ]
    except OSError:
        return [_named([pid]) for pid in pids if serves(pid) and _kill([pid])]


def files(pids: Iterable[int]) -> dict[int, str]:
    """Return a file of each file system on which the processes have files open or mapped, or are, by its device's minor number.

    That is the number of a connection as well (fs/fuse/control.c). No file system is asked for anything.
    """
    found: dict[int, str] = {}
    for pid in pids:
        opened = {f"fd/{fd}": link for fd, link in processes.descriptors(pid).items()}
        with suppress(OSError):
            opened["cwd"] = os.readlink(f"/proc/{pid}/cwd")
        for name, link in opened.items():
            major, minor = _device(f"/proc/{pid}/{name}")
            if major == 0 and link.startswith("/"):
                found.setdefault(minor, link)
        for area in processes.maps(pid):
            major, minor = (int(number, 16) for number in area.dev.split(":"))
            if major == 0 and area.path.startswith("/"):
                found.setdefault(minor, area.path)
    return found


def _device(path: str) -> tuple[int, int]:
    """Return the device of a file by what Linux remembers of it: `os.stat` may wait for a server."""
    facts = ctypes.create_string_buffer(_STATX_BYTES)
    libc = ctypes.CDLL(None)
    if libc.syscall(_NR_STATX, _AT_FDCWD, path.encode(), _AT_STATX_DONT_SYNC, 0, facts):
        return -1, -1
    major, minor = memoryview(facts.raw)[_STATX_DEVICE].cast("I")
    return major, minor


def _servers(number: int) -> list[int]:
    """Return the servers of a connection; none before Linux 6.18, which does not tell them."""
    return [pid for pid in processes.every() if number in _devices(pid)]


def _named(pids: Iterable[int]) -> str:
    return ", ".join(f"{processes.name(pid) or '?'}, process {pid}" for pid in pids)


def _devices(pid: int) -> Iterator[int]:
    """Yield the number of the connection of each /dev/fuse that a process has open; 0 where Linux does not tell it."""
    for fd, link in processes.descriptors(pid).items():
        if not link.startswith("/dev/"):
            continue
        with suppress(OSError):
            status = os.stat(f"/proc/{pid}/fd/{fd}")
            if stat.S_ISCHR(status.st_mode) and status.st_rdev in _DEVICES:
                with open(f"/proc/{pid}/fdinfo/{fd}") as info:
                    found = _CONNECTION.search(info.read())
                yield int(found[1]) if found else 0


def _waits(folder: str, number: int) -> bool:
    """Return whether a request waits for the server of a connection; False if there is no such connection."""
    try:
        return int(Path(folder, str(number), "waiting").read_text()) > 0
    except OSError:
        return False


def _abort(folder: str, number: int, servers: list[int]) -> bool:
    """Abort a connection, or else kill its servers; return whether one of both was possible."""
    try:
        Path(folder, str(number), "abort").write_text("1")
    except OSError:
        return _kill(servers)
    return True


def _kill(pids: Iterable[int]) -> bool:
    """Kill processes; return whether any could be killed."""
    killed = False
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            killed = True
    return killed


@contextmanager
def _control() -> Iterator[str]:
    """Yield the path of a fusectl file system, which has a folder for each FUSE connection; mount it if needed. Raises OSError."""
    if os.listdir(_USUAL):
        yield _USUAL
        return
    libc = ctypes.CDLL(None, use_errno=True)
    opened: list[int] = []
    try:
        opened.append(_checked(libc.syscall(_NR_FSOPEN, b"fusectl", _FSOPEN_CLOEXEC)))
        _checked(libc.syscall(_NR_FSCONFIG, opened[0], _FSCONFIG_CMD_CREATE, None, None, 0))
        opened.append(_checked(libc.syscall(_NR_FSMOUNT, opened[0], _FSMOUNT_CLOEXEC, 0)))
        yield f"/proc/self/fd/{opened[1]}"
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
