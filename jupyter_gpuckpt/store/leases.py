"""Leases on chunks that must stay although no manifest refers to them, because an operation in flight relies on them.

A writer has a lease on every chunk that it wrote or was told is there. The lease outlives the writer until a manifest that covers
it is published, so that no deletion in between removes a chunk; a lease whose manifest never comes expires. Readers have leases on
what they read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

#: Between the end of a writer and its manifest lie seconds; after this long the operation has failed.
PUBLISH_SECONDS = 1800.0


class Lease:
    """Digests of chunks that may not be removed."""

    def __init__(self) -> None:
        self.digests: set[bytes] = set()
        #: None while its holder is at work.
        self.ends: float | None = None


class Leases:
    """The leases of one store. Not thread-safe: used under the store's lock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._leases: list[Lease] = []

    def take(self, digests: Collection[bytes] = ()) -> Lease:
        """Return a new lease on `digests`."""
        lease = Lease()
        lease.digests.update(digests)
        self._leases.append(lease)
        return lease

    def await_publication(self, lease: Lease) -> None:
        """Let the lease expire unless a manifest is published in time: its holder has finished."""
        lease.ends = self._clock() + PUBLISH_SECONDS

    def release(self, lease: Lease) -> None:
        """End a lease; may be called again."""
        if lease in self._leases:
            self._leases.remove(lease)

    def published(self, digests: set[bytes]) -> None:
        """End the leases that waited for a manifest that refers to `digests`."""
        self._leases = [
            lease for lease in self._leases if lease.ends is None or not lease.digests <= digests
        ]

    def any_of(self, digests: Collection[bytes]) -> bool:
        """Return whether one of these digests is under a lease."""
        now = self._clock()
        self._leases = [lease for lease in self._leases if lease.ends is None or lease.ends > now]
        return any(not lease.digests.isdisjoint(digests) for lease in self._leases)
