"""Writing at a place in a file, until all is written."""

from __future__ import annotations

import os


def pwrite_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at `offset`, wherever the file's own position is. Thread-safe. Raises OSError.

    One call of pwrite writes 2 GB at most, and on a nearly full disk what there is room for; only the next one says ENOSPC
    (man 2 write).
    """
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
