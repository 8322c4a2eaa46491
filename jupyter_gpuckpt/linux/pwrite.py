"""Writing all of a buffer at an offset of a file."""

from __future__ import annotations

import os


def pwrite_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at `offset`, independently of the file's position. Thread-safe. Raises OSError.

    One call of pwrite writes at most 2 GB, and on a nearly full disk only as much as fits; only the next call reports ENOSPC
    (man 2 write).
    """
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
