"""File locks in CRIU's images that a restore would not get: CRIU waits for some of them for ever, and names none.

The layout is that of file_lock_entry (images/file-lock.proto), task_kobj_ids_entry (images/core.proto) and fdinfo_entry
(images/fdinfo.proto). Files are not opened, because that could have side effects. Linux lists the locks (man proc_locks) of the processes
that are visible from here.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from ...errors import ThawFailed
from ...host import processes
from ..injection.tracee import Tracee
from ..tree.launch import pids
from ..tree.tree import Tree
from . import images as criu_images
from . import memory_images

#: file_lock_entry.
_KIND, _TYPE, _PID, _FD, _START, _LENGTH = 1, 2, 3, 4, 5, 6
#: criu/include/file-lock.h: FL_POSIX, FL_FLOCK, FL_OFD; and the kinds of Linux's list that conflict with each.
_POSIX = 1
_CONFLICTS = {_POSIX: ("POSIX", "OFDLCK"), 2: ("FLOCK",), 4: ("POSIX", "OFDLCK")}
#: task_kobj_ids_entry and fdinfo_entry.
_FILES_ID = 2
_FD_FILE, _FD_NUMBER = 1, 4
#: How long a lock may be held by another program: many hold one only for a moment.
_PATIENCE_SECONDS, _PAUSE_SECONDS = 5.0, 0.05
#: fcntl's number as a system call (x86-64), and struct flock: type, whence (0: the file's beginning), start, length, pid.
_FCNTL, _FLOCK = 72, struct.Struct("<hh4xqqi4x")


class Lock(msgspec.Struct, frozen=True):
    """A lock on a file. `kinds`: of Linux's list, with which it conflicts; `end`: the last byte, None for the end of the file.

    `pid`, `fd`: the process and the descriptor that have it. `is_of_process`: it is a POSIX lock, which belongs to the process.
    """

    path: str
    kinds: tuple[str, ...]
    exclusive: bool
    start: int
    end: int | None
    pid: int = 0
    fd: int = 0
    is_of_process: bool = False

    def overlaps(self, first: int, last: int) -> bool:
        """Return whether a byte between these two, both included, is locked."""
        return self.start <= last and (self.end is None or self.end >= first)


def require_free(images: Path, root: Path) -> None:
    """Raise ThawFailed if another program holds a lock that the tree had. `root`: where the tree's files are found."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for lock in locks(images):
        path = root / lock.path.lstrip("/")
        while (holder := _holder(lock, path)) is not None:
            if time.monotonic() > deadline:
                raise _taken(lock, holder)
            time.sleep(_PAUSE_SECONDS)


def _taken(lock: Lock, holder: int) -> ThawFailed:
    by = f"process {holder} ({processes.name(holder) or '?'})" if holder > 0 else "a process"
    return ThawFailed(
        f"The file {lock.path} is locked by {by}, and the kernel held a lock on it.",
        hint="Close the file there, then try again; a resume by force cannot take the lock either. The snapshot is untouched.",
        details=f"{lock}",
    )


@criu_images.strict
def locks(images: Path, *, deleted: bool = False) -> list[Lock]:
    """Return the locks on files that a restore finds by their names. `deleted`: also those on deleted files."""
    path = images / "filelocks.img"
    if not path.exists():
        return []
    entries = [criu_images.numbers(one) for one in criu_images.messages(path)]
    return list(_named(images, entries, set() if deleted else criu_images.remapped(images)))


def _named(
    images: Path, entries: list[dict[int, int]], left_out: Collection[int]
) -> Iterator[Lock]:
    if not entries:
        return
    names = {file.file_id: file.path for file in criu_images.regular_files(images)}
    files = {pid: _files(images, pid) for pid in {entry[_PID] for entry in entries}}
    for entry in entries:
        file_id = files[entry[_PID]].get(entry[_FD])
        kinds = _CONFLICTS.get(entry[_KIND])  # none for a lease
        if file_id in names and file_id not in left_out and kinds:
            start, length = entry[_START], entry[_LENGTH]
            end = start + length - 1 if length else None
            exclusive = entry[_TYPE] == fcntl.F_WRLCK
            owner = entry[_PID], entry[_FD], entry[_KIND] == _POSIX
            yield Lock(names[file_id], kinds, exclusive, start, end, *owner)


def _files(images: Path, pid: int) -> dict[int, int]:
    """Return the id in the images of each open file of a process, by descriptor."""
    [ids] = criu_images.messages(images / f"ids-{pid}.img")
    table = images / f"fdinfo-{criu_images.numbers(ids)[_FILES_ID]}.img"
    entries = [criu_images.numbers(message) for message in criu_images.messages(table)]
    return {entry.get(_FD_NUMBER, 0): entry[_FD_FILE] for entry in entries}


def _holder(lock: Lock, path: Path) -> int | None:
    """Return the id of a process that holds a conflicting lock; 0 if the id is unknown, None if no process holds one."""
    try:
        status = path.stat()
        listed = Path("/proc/locks").read_text().splitlines()
    except OSError:  # CRIU reports a missing file
        return None
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in listed:
        # 1: POSIX  ADVISORY  WRITE 1234 08:01:5678 0 EOF; "->" after the number is a process that waits
        with suppress(ValueError):
            _, kind, _, access, pid, where, start, end = line.split()
            if (
                where == file
                and kind in lock.kinds
                and (lock.exclusive or access == "WRITE")
                and (end == "EOF" or int(end) >= lock.start)
                and (lock.end is None or int(start) <= lock.end)
            ):
                return max(0, int(pid))
    return None


def take_again(images: Path, tree: Tree) -> None:
    """Take the locks that a restore drops again in its stopped processes. Raises ThawFailed if another program has one now.

    CRIU takes the locks of a process, then opens the files that it has mapped, and closes them again. But Linux drops all POSIX locks of a
    process on a file when the process closes any descriptor of it (man 2 fcntl). SQLite has locks on a mapped file, the index of a log:
    without them another program removes the log while the process uses it.
    """
    mapped = memory_images.mapped_ends(images)
    paths = {file.path for file in criu_images.regular_files(images) if file.file_id in mapped}
    dropped: dict[int, list[Lock]] = {}
    for lock in locks(images, deleted=True):
        if lock.is_of_process and lock.path in paths:
            dropped.setdefault(lock.pid, []).append(lock)
    for pid in pids(tree) if dropped else ():
        if lost := dropped.get(processes.nspid(pid) or 0):
            _take(pid, lost)


def _take(pid: int, locks: Sequence[Lock]) -> None:
    try:
        with Tracee(pid, processes.living_thread(pid)) as tracee:
            for lock in locks:
                kind = fcntl.F_WRLCK if lock.exclusive else fcntl.F_RDLCK
                length = 0 if lock.end is None else lock.end - lock.start + 1
                with tracee.borrowed(_FLOCK.pack(kind, 0, lock.start, length, 0)) as address:
                    tracee.syscall(_FCNTL, lock.fd, fcntl.F_SETLK, address)
    except OSError as error:
        raise ThawFailed(
            "A lock that the kernel held on a file could not be taken again.",
            hint="Close the file in other programs, then try again; a resume by force cannot take it either. The snapshot is untouched.",
            details=f"process {pid}, {', '.join(sorted({lock.path for lock in locks}))}: {error}",
        ) from error
