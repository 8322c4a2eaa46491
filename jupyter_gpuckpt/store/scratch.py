"""Memory that is used again and again, so that its pages are there."""

from __future__ import annotations

import mmap
from contextlib import suppress


class Scratch:
    """Reusable memory of one worker. What `get` gave is overwritten by what is done with the next one."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def get(self, length: int) -> memoryview:
        """Writable memory, page-aligned; its content is undefined."""
        if len(self._memory) < length:
            fresh = mmap.mmap(-1, length)
            # Fewer page faults; where the system has no huge pages, small ones do.
            with suppress(OSError):
                fresh.madvise(mmap.MADV_HUGEPAGE)
            self._memory = memoryview(fresh)
        return self._memory[:length]
