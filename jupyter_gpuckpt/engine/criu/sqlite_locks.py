"""SQLite databases that the processes in CRIU's images use in the middle of a transaction, recognized by their locks.

A suspended kernel holds no locks. A database that another program changed meanwhile is damaged by a transaction that goes on. See
https://www.sqlite.org/walformat.html and os_unix.c of SQLite for the bytes that it locks.
"""

from __future__ import annotations

from pathlib import Path

from . import images as criu_images
from . import lock_images

#: The index of a write-ahead log: its locks of writers, checkpoints and readers. The byte after them is locked while it is open.
INDEX = "-shm"
_INDEX_FIRST, _INDEX_LAST = 120, 127
#: The locks of a database without such a log: pending, reserved, and 510 bytes of readers.
_FIRST, _LAST = 0x40000000, 0x400001FF


def in_transaction(images: Path) -> set[str]:
    """Return the paths of the databases that are in the middle of a transaction."""
    locks = lock_images.locks(images)
    paths = (
        {"/" + file.path.lstrip("/") for file in criu_images.regular_files(images)}
        if locks
        else set[str]()
    )
    found = set()
    for lock in locks:
        path = "/" + lock.path.lstrip("/")
        if path.endswith(INDEX) and lock.overlaps(_INDEX_FIRST, _INDEX_LAST):
            found.add(path.removesuffix(INDEX))
        # With a log the database itself stays locked for reading while it is open.
        elif f"{path}{INDEX}" not in paths and lock.overlaps(_FIRST, _LAST):
            found.add(path)
    return found
