"""Removal of files that killed daemons left in the state directory.

Age alone removes nothing: the time of day may have been set a moment ago.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from ...linux.file_locks import is_locked
from .whole_files import UNFINISHED

#: The age at which an unfinished file that no process writes counts as abandoned.
_ABANDONED_SECONDS = 60.0
#: How long exit files are kept, and how many in any case. A provisioner reads one within moments of the end, unless its machine was
#: suspended.
_KEEP_EXITS_SECONDS, _KEEP_EXITS = 7 * 24 * 3600.0, 100


def remove(kernels: Path, exits: Path, needed_exits: Collection[str]) -> None:
    """Remove unfinished files of records, and old exit files except `needed_exits`."""
    for folder in kernels.iterdir():
        with suppress(OSError):  # another place's daemon may be renaming or removing it now
            abandoned = list(filter(_is_abandoned, folder.glob(f"{UNFINISHED}*")))
            for path in abandoned:
                path.unlink()
            if abandoned:
                folder.rmdir()  # fails where a record lies beside it
    found = []
    for path in exits.iterdir():
        with suppress(FileNotFoundError):
            found.append((path.stat().st_mtime, path))
    before = time.time() - _KEEP_EXITS_SECONDS
    for written, path in sorted(found)[:-_KEEP_EXITS]:
        if written < before and str(path) not in needed_exits:
            path.unlink(missing_ok=True)


def _is_abandoned(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > _ABANDONED_SECONDS and not is_locked(path)
