"""Locks that a restore drops, taken once more.

CRIU takes the locks of a process, then opens the files that it has mapped, and closes them again. But Linux drops all POSIX locks of a
process on a file when the process closes any descriptor of it (man 2 fcntl). SQLite has locks on a mapped file, the index of a log:
without them another program removes the log while the process uses it.
"""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Sequence
from pathlib import Path

from ...errors import ThawFailed
from ...host import processes
from ..injection.tracee import Tracee
from ..tree.launch import pids
from ..tree.tree import Tree
from . import images as criu_images
from . import lock_images, memory_images
from .lock_images import Lock

#: fcntl's number as a system call (x86-64), and struct flock: type, whence (0: the file's beginning), start, length, pid.
_FCNTL, _FLOCK = 72, struct.Struct("<hh4xqqi4x")


def take_again(images: Path, tree: Tree) -> None:
    """Take the dropped locks in the stopped processes of a restored tree. Raises ThawFailed if another program has one now."""
    mapped = memory_images.mapped_ends(images)
    files = criu_images.regular_files(images)
    paths = {file.path for file in files if file.file_id in mapped}
    dropped: dict[int, list[Lock]] = {}
    for lock in lock_images.locks(images, deleted=True):
        if lock.is_of_process and lock.path in paths:
            dropped.setdefault(lock.pid, []).append(lock)
    for pid in pids(tree) if dropped else ():
        if locks := dropped.get(processes.nspid(pid) or 0):
            _take(pid, locks)


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
