"""Files that are not in memory: pushed out of the page cache, and looked at whether they are.

All caches of the machine could be dropped instead; this leaves those of others alone, and what was run before as warm as it was.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

_PAGE = mmap.PAGESIZE
#: At most this share of a file may stay: Linux keeps pages that somebody else is just reading.
_MAX_SHARE_LEFT = 0.02


def evict(paths: Iterable[Path]) -> None:
    """Write back and forget what is cached of these files. Raises AssertionError when it stays."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert cached(path) <= _MAX_SHARE_LEFT, f"{cached(path):.0%} of {path.name} stays in memory"


def cached(path: Path) -> float:
    """Return the share of a file's pages that are in memory (man mincore)."""
    length = path.stat().st_size
    if not length:
        return 0.0
    pages = np.zeros(-(-length // _PAGE), np.uint8)
    with path.open("rb") as file, mmap.mmap(file.fileno(), length, mmap.MAP_PRIVATE) as mapped:
        address = np.frombuffer(mapped, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.mincore(
            ctypes.c_void_p(address.ctypes.data),
            ctypes.c_size_t(length),
            ctypes.c_void_p(pages.ctypes.data),
        )
        del address
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return float((pages & 1).mean())
