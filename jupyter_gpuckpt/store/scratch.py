"""Reusable memory, whose pages stay mapped."""

from __future__ import annotations

import mmap
import threading
from contextlib import suppress


class Scratch:
    """A reusable buffer of one worker: every `get` returns the same memory again."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def get(self, length: int) -> memoryview:
        """Return writable, page-aligned memory with undefined content."""
        if len(self._memory) < length:
            fresh = mmap.mmap(-1, length)
            # Huge pages reduce page faults; without them small pages work, too.
            with suppress(OSError):
                fresh.madvise(mmap.MADV_HUGEPAGE)
            self._memory = memoryview(fresh)
        return self._memory[:length]


class ThreadScratch(threading.local):
    """Reusable memory, separate for each thread that uses it."""

    def __init__(self) -> None:
        self.memory = Scratch()
