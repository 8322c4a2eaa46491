"""The limit of the upload rate."""

from __future__ import annotations

import threading
import time

from .retries import Retries


class Pace:
    """A limiter of the average upload rate to `rate` bytes per second; 0 means no limit. Thread-safe."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait(self, count_bytes: int, retries: Retries) -> None:
        """Wait until `count_bytes` may be sent. The next call waits for the time that these bytes take at this rate."""
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            begins = max(now, self._free_at)
            self._free_at = begins + count_bytes / self._rate
        retries.wait(begins - now)
