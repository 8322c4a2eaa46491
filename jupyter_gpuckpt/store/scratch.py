"""Reusable memory, whose pages stay mapped."""

from __future__ import annotations

import threading

from ..linux.fresh_memory import fresh_memory


class Scratch:
    """A reusable buffer of one worker: every `get` returns the same memory again."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def get(self, length: int) -> memoryview:
        """Return writable, page-aligned memory with undefined content."""
        if len(self._memory) < length:
            self._memory = fresh_memory(length)
        return self._memory[:length]


class ThreadScratch(threading.local):
    """Reusable memory, separate for each thread that uses it."""

    def __init__(self) -> None:
        self.memory = Scratch()
