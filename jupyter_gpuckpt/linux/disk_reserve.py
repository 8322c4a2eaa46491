"""Room on a disk for small writes that must succeed although the disk is full.

A kernel that starts, resumes or ends and a daemon that starts write some kilobytes. On a full disk they take them from a file
in the data directory, or in a store on another disk: it is shortened, and takes back at once what they have left. A disk or quota may
also allow no further files (inodes); so some of the empty files in a folder beside it are removed meanwhile. Any process of the
user may take from both; only daemons fill them. Snapshots do not use them, because they are what a full disk costs.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from ..errors import is_disk_full

#: No file of a user has this name: what is found under it is shortened.
NAME = "gpuckpt.reserve"
#: The folder beside it, with so many empty files. A launch needs about ten.
FILES_NAME, FILES = f"{NAME}-files", 128
#: The size of a reserve. A launch needs about 50 KB, the opening of a store with a new pack some megabytes.
BYTES = 8 << 20
#: What large writes, those of the store's database, leave for the others.
LEFT_BYTES = BYTES // 2
#: By how much it is shortened before another attempt, and how many files are removed.
_STEP_BYTES, _STEP_FILES = 256 << 10, 8
#: SQLite's names for a full disk and, among others, for an exceeded quota.
_SQLITE_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE})

_Result = TypeVar("_Result")


def fill(folder: Path) -> None:
    """Make the reserve for a folder as large as it should be if the disk has room for that and as much again; never raises."""
    with suppress(OSError):
        # A store in the data directory needs none of its own.
        path = _reserve_of(folder / NAME) or folder / NAME
        size = _size(path)
        if size < BYTES and free_bytes(folder) >= 2 * BYTES - size:
            _allocate(path, BYTES)
        facts = os.statvfs(folder)
        if facts.f_favail >= 2 * FILES:  # 0 where the number of files is not limited
            _make_files(path, set(map(str, range(FILES))) - set(_files(path)))


def with_room(path: Path, write: Callable[[], _Result], *, left_bytes: int = 0) -> _Result:
    """Return the result of `write`, which writes to `path`; repeat it with room from the reserve as long as the disk is full.

    `left_bytes`: what the reserve keeps. Raises the errors of `write`.
    """
    try:
        return write()
    except (OSError, sqlite3.OperationalError) as error:
        reserve = _reserve_of(path) if _is_full(error) else None
        if reserve is None:
            raise
    with _taken_back(reserve):
        while True:
            may_repeat = _shorten(reserve, left_bytes)
            try:
                return write()
            except (OSError, sqlite3.OperationalError) as error:
                if not (may_repeat and _is_full(error)):
                    raise


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file atomically: readers see the old or the new content, also after a kill of this process."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with_room(path, lambda: new.write_bytes(content))
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


@contextmanager
def room_beside(folder: Path, path: Path) -> Iterator[None]:
    """Have room for files at `path`, which other programs write, inside the block, if the reserve of `folder` is on the same disk.

    Never raises.
    """
    reserve = folder / NAME
    try:
        device = next(one for one in path.parents if one.exists()).stat().st_dev
        needed = device == reserve.lstat().st_dev and _is_short(folder)
    except OSError:
        needed = False
    if not (needed and _is_reserve(reserve)):
        yield
        return
    with _taken_back(reserve):
        with suppress(OSError):
            _shorten(reserve, 0)
        yield


@contextmanager
def _taken_back(reserve: Path) -> Iterator[None]:
    """Take back, after the block, what is left of what was given back in it: it must not go to whatever fills the disk."""
    before, files = _size(reserve), _files(reserve)
    try:
        yield
    finally:
        with suppress(OSError):
            _allocate(reserve, min(before, _size(reserve) + free_bytes(reserve.parent)))
        with suppress(OSError):
            _make_files(reserve, files)


def _reserve_of(path: Path) -> Path | None:
    """Return the reserve for a path: that of the nearest folder above it on the same disk; None if there is none.

    Only folders are searched in which no other user could have put the file.
    """
    device = None
    for folder in path.parents:
        try:
            found = folder.stat()
        except OSError:
            continue
        device = device or found.st_dev
        others_write = found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if found.st_dev != device or others_write:
            return None
        if _is_reserve(folder / NAME):
            return folder / NAME
    return None


def _is_reserve(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def _shorten(reserve: Path, left_bytes: int) -> bool:
    """Give back a part of a reserve, and of its files; return False if there is none to give."""
    size = _size(reserve)
    if size > left_bytes:
        os.truncate(reserve, max(left_bytes, size - _STEP_BYTES))
        for name in _files(reserve)[:_STEP_FILES]:
            reserve.with_name(FILES_NAME).joinpath(name).unlink(missing_ok=True)
    return size > left_bytes


def _files(reserve: Path) -> list[str]:
    """Return the names of the empty files beside a reserve."""
    try:
        return [path.name for path in reserve.with_name(FILES_NAME).iterdir()]
    except OSError:
        return []


def _make_files(reserve: Path, names: Iterable[str]) -> None:
    folder = reserve.with_name(FILES_NAME)
    folder.mkdir(mode=0o700, exist_ok=True)
    for name in names:
        (folder / name).touch(mode=0o600)


def _allocate(path: Path, size: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        if size > os.fstat(descriptor).st_size:
            os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def free_bytes(folder: Path) -> int:
    """Return how many bytes an ordinary user can still write to the file system of a folder."""
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize


def _is_short(folder: Path) -> bool:
    facts = os.statvfs(folder)
    no_files = facts.f_files > 0 and facts.f_favail < _STEP_FILES
    return no_files or facts.f_bavail * facts.f_frsize < _STEP_BYTES


def _is_full(error: OSError | sqlite3.OperationalError) -> bool:
    if isinstance(error, OSError):
        return is_disk_full(error)
    code = getattr(error, "sqlite_errorcode", 0)
    return code in _SQLITE_FULL or code & 0xFF == sqlite3.SQLITE_FULL
