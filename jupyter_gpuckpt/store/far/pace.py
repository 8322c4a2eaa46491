"""How fast may be uploaded."""

from __future__ import annotations

import threading
import time

from .retries import Retries


class Pace:
    """Spreads writes so that they are no more than `rate` bytes per second on average; 0: no limit. Thread-safe."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait(self, count_bytes: int, retries: Retries) -> None:
        """Wait until so many bytes may be written; the time that they take is the next one's wait."""
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            begins = max(now, self._free_at)
            self._free_at = begins + count_bytes / self._rate
        retries.wait(begins - now)
