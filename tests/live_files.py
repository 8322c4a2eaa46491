"""Files in folders that a running program changes: what is removed while a test looks is left out.

`Path.rglob` and a later `stat` raise FileNotFoundError for it, once in many runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def entries_below(folder: Path) -> Iterator[Path]:
    """Yield the paths of all files and directories below a folder."""
    for directory, names, files in os.walk(folder):  # passes over directories that cannot be read
        for name in (*names, *files):
            yield Path(directory, name)


def stats_below(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files and directories below a folder that are still there, each with its status."""
    for path in entries_below(folder):
        with suppress(FileNotFoundError):
            yield path, path.lstat()


def bytes_below(folder: Path) -> int:
    """Return the length of all files below a folder, in bytes."""
    return sum(status.st_size for path, status in stats_below(folder) if path.is_file())
