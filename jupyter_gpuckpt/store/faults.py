"""Translation of errors of the operating system and of SQLite to the store's errors."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import StoreError, StoreFull, StoreUnavailable, is_disk_full

#: With less free space a disk is nearly full.
_FULL_BYTES = 1 << 20
#: With less free space than these bytes and this part of the disk, what is left is not for periodic saves.
_SCARCE_BYTES, _SCARCE_PART = 1e9, 0.05


def is_nearly_full(path: Path) -> bool:
    """Return whether the file system of `path` counts as full for a deletion, whose user needs room now."""
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize < _FULL_BYTES or _has_no_file_left(facts)


def is_scarce(path: Path) -> bool:
    """Return whether the file system of `path` has too little room for periodic saves: what is left is for what users do."""
    facts = os.statvfs(path)
    free, total = facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize
    return free < min(_SCARCE_BYTES, _SCARCE_PART * total)


def _has_no_file_left(facts: os.statvfs_result) -> bool:
    return facts.f_files > 0 and facts.f_favail == 0  # both are 0 where the number is not limited


@contextmanager
def store_errors(root: Path, needed_bytes: int = 0) -> Iterator[None]:
    """Convert disk errors to `StoreFull` or `StoreUnavailable`; `needed_bytes`: the size of the failed write."""
    try:
        yield
    except OSError as error:
        raise disk_error(root, error, needed_bytes) from error
    except sqlite3.OperationalError as error:
        raise catalog_error(root, error) from error


def disk_error(root: Path, error: OSError, needed_bytes: int = 0) -> StoreError:
    """Return the store's error for `error`, which occurred below `root`."""
    if is_disk_full(error):
        return _full(root, needed_bytes)
    return StoreUnavailable(
        f"The directory {root} cannot be used: {error.strerror or error}.",
        hint=f"Make the directory {root} readable and writable for the user that runs gpuckptd, or choose another one.",
        details=str(error),
    )


def catalog_error(root: Path, error: sqlite3.OperationalError) -> StoreError:
    """Return the store's error for an error of SQLite."""
    # Errors of the sqlite3 module itself, or of this package, have neither code nor name.
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
        return _full(root, 0)
    return StoreUnavailable(
        f"The catalog of the snapshot store {root} cannot be used: {error}.",
        hint=f"Make the directory {root} readable and writable for the user that runs gpuckptd, or choose another store.",
        details=getattr(error, "sqlite_errorname", str(error)),
    )


def _full(root: Path, needed_bytes: int) -> StoreFull:
    try:
        facts = os.statvfs(root)
        free = f"{facts.f_bavail * facts.f_frsize:,} bytes are free"
        if _has_no_file_left(facts):
            free += ", but the disk allows no further files (inodes)"
    except OSError:
        free = "how much is free is unknown"
    needed = f"at least {needed_bytes:,} more bytes are needed, " if needed_bytes else ""
    return StoreFull(
        f"The disk is full: {needed}{free} in {root}.",
        hint="Delete snapshots that are no longer needed, or put the store on a larger disk.",
    )
