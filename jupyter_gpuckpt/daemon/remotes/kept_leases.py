"""The kernels whose leases are kept for a while although they do not run. A lock orders a release and a concurrent resume."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Reservations:
    """The kernels whose leases are kept, by id. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The end of each reservation, on the monotonic clock.
        self._until: dict[str, float] = {}

    def keep(self, kernel_id: str, seconds: float) -> None:
        """Keep a kernel's lease for `seconds` from now; on return an earlier release is already in the lease file."""
        with self._lock:
            self._until[kernel_id] = time.monotonic() + seconds

    def keep_longer(self, kernel_id: str, seconds: float) -> None:
        """Keep a kernel's lease for at least `seconds` from now."""
        with self._lock:
            until = time.monotonic() + seconds
            self._until[kernel_id] = max(until, self._until.get(kernel_id, until))

    def end(self, kernel_id: str) -> None:
        """End the reservation of a kernel, if there is one."""
        with self._lock:
            self._until.pop(kernel_id, None)

    def clear(self) -> None:
        """End all reservations."""
        with self._lock:
            self._until.clear()

    def all(self) -> set[str]:
        """Return the kernels whose leases are kept now."""
        with self._lock:
            now = time.monotonic()
            self._until = {one: until for one, until in self._until.items() if until > now}
            return set(self._until)

    def unless_kept(self, kernel_id: str, note: Callable[[], None]) -> bool:
        """Call `note`, which records a release, unless the kernel's lease is kept; return whether it was called."""
        with self._lock:
            if self._until.get(kernel_id, 0.0) > time.monotonic():
                return False
            note()
            return True
