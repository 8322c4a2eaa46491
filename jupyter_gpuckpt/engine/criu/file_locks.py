"""File locks in CRIU's images that a restore would not get: CRIU waits for some of them for ever, and names none.

The layout is that of file_lock_entry (images/file-lock.proto), task_kobj_ids_entry (images/core.proto) and fdinfo_entry
(images/fdinfo.proto).
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...errors import ThawFailed
from ...host import processes
from . import images as criu_images

#: file_lock_entry.
_KIND, _TYPE, _PID, _FD, _START, _LENGTH = 1, 2, 3, 4, 5, 6
#: criu/include/file-lock.h: FL_POSIX, FL_FLOCK, FL_OFD.
_POSIX, _FLOCK, _OFD = 1, 2, 4
#: task_kobj_ids_entry and fdinfo_entry.
_FILES_ID = 2
_FD_FILE, _FD_NUMBER = 1, 4
#: linux/fcntl.h, on 64 bits: struct flock.
_F_OFD_GETLK = 36
_FLOCK_LAYOUT = "=hhxxxxqqixxxx"


@dataclass(frozen=True)
class _Lock:
    """A lock on a file. `exclusive`: for writing; `length`: in bytes, 0 up to the end."""

    path: str
    kind: int
    exclusive: bool
    start: int
    length: int


def require_free(images: Path, root: Path) -> None:
    """Raise ThawFailed if another program holds a lock that the tree had. `root`: where the tree's files are found."""
    for lock in _locks(images):
        holder = None
        with suppress(OSError):  # a missing file, or one that may not be opened: CRIU reports it
            holder = _holder(lock, root / lock.path.lstrip("/"))
        if holder is not None:
            by = (
                f"process {holder} ({processes.name(holder) or '?'})" if holder > 0 else "a process"
            )
            raise ThawFailed(
                f"The file {lock.path} is locked by {by}, and the kernel held a lock on it.",
                hint="Close the file there, then try again. The snapshot is untouched.",
                details=f"{lock}",
            )


@criu_images.strict
def _locks(images: Path) -> list[_Lock]:
    path = images / "filelocks.img"
    if not path.exists():
        return []
    return list(_named(images, [criu_images.numbers(one) for one in criu_images.messages(path)]))


def _named(images: Path, entries: list[dict[int, int]]) -> Iterator[_Lock]:
    if not entries:
        return
    remapped = criu_images.remapped(images)
    names = {file.file_id: file.path for file in criu_images.regular_files(images)}
    for entry in entries:
        file_id = _file_id(images, entry[_PID], entry[_FD])
        if file_id in names and file_id not in remapped:
            yield _Lock(
                names[file_id],
                entry[_KIND],
                entry[_TYPE] & ~os.O_CLOEXEC == fcntl.F_WRLCK,
                entry[_START],
                entry[_LENGTH],
            )


def _file_id(images: Path, pid: int, fd: int) -> int | None:
    """Return the id of the file behind a descriptor of a process."""
    [ids] = criu_images.messages(images / f"ids-{pid}.img")
    table = images / f"fdinfo-{criu_images.numbers(ids)[_FILES_ID]}.img"
    for message in criu_images.messages(table):
        entry = criu_images.numbers(message)
        if entry.get(_FD_NUMBER) == fd:
            return entry[_FD_FILE]
    return None


def _holder(lock: _Lock, path: Path) -> int | None:
    """Return the pid of a process whose lock prevents this one; 0 if it is unknown, None if there is none. Raises OSError."""
    fd = os.open(
        path, (os.O_RDWR if lock.exclusive else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK
    )
    try:
        if lock.kind == _FLOCK:
            kind = fcntl.LOCK_EX if lock.exclusive else fcntl.LOCK_SH
            try:
                fcntl.flock(fd, kind | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno != errno.EWOULDBLOCK:
                    raise
                return _holder_by_inode(os.fstat(fd))
            return None
        kind = fcntl.F_WRLCK if lock.exclusive else fcntl.F_RDLCK
        asked = struct.pack(_FLOCK_LAYOUT, kind, os.SEEK_SET, lock.start, lock.length, 0)
        answer = struct.unpack(_FLOCK_LAYOUT, fcntl.fcntl(fd, _F_OFD_GETLK, asked))
        return None if answer[0] == fcntl.F_UNLCK else max(0, answer[4])
    finally:
        os.close(fd)


def _holder_by_inode(status: os.stat_result) -> int:
    """Return the pid of a process that holds a lock on a file (man proc_locks); 0 if it is not seen from here."""
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            columns = line.split()
            if file in columns and columns[4].isdecimal():
                return int(columns[4])
    return 0
