"""The counter of requests to a remote, by the categories in which they are billed."""

from __future__ import annotations

import threading

from ..wire.snapshot_records import Traffic


class Counter:
    """A counter of the requests to a bucket and their bytes. Thread-safe. Deletions are free and not counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._traffic = Traffic()

    @property
    def traffic(self) -> Traffic:
        """Return the counts so far; no upload is counted."""
        return self._traffic

    def note_write(self, sent_bytes: int = 0) -> None:
        """Count a request that writes or lists."""
        self._add(Traffic(writes=1, sent_bytes=sent_bytes))

    def note_read(self) -> None:
        """Count a request that reads, whether or not the object exists."""
        self._add(Traffic(reads=1))

    def note_received(self, count_bytes: int) -> None:
        """Count received bytes."""
        self._add(Traffic(received_bytes=count_bytes))

    def _add(self, more: Traffic) -> None:
        with self._lock:
            self._traffic = self._traffic.and_then(more)
