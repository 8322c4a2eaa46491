"""Small files of the daemon that are replaced as a whole."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from ...linux.disk_reserve import with_room
from ...linux.file_locks import alone
from ...store.faults import store_errors
from ...store.manifests import replace_file

_Records = TypeVar("_Records")

#: The prefix of the name of a file that is being written.
UNFINISHED = ".unfinished-"


def write_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: a reader sees the old or the new content, even after a power cut. It has room on a full disk."""
    with_room(path, lambda: _write(path, content))


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{UNFINISHED}{path.name}.{secrets.token_hex(4)}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            with suppress(OSError):  # not every file system has locks
                fcntl.flock(fd, fcntl.LOCK_EX)  # so that nobody takes it for abandoned
            file.write(content)
            file.flush()
            os.fsync(fd)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def change_records(
    path: Path, read: Callable[[], _Records], change: Callable[[_Records], _Records]
) -> None:
    """Update a file of records under its lock, because other processes change it, too; write nothing if the records stay the same.

    `read`: returns the file's records. `change`: returns what they become. Raises StoreUnavailable, StoreFull, and the errors of both.
    """
    folder = path.parent
    with store_errors(folder), alone(path.with_suffix(".lock")):
        before = read()
        after = change(before)
        if after != before:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, msgspec.json.encode(after))
