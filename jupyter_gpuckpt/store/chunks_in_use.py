"""Leases on chunks: a running operation relies on them, so they must not be removed although no manifest refers to them.

A writer has a lease on every chunk that it wrote or found in the store. The lease outlives the writer until a manifest that covers
it is published, so that no deletion in between removes a chunk; without such a manifest the lease expires. Readers have leases on
the chunks that they read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

#: The time after a writer's end at which its lease expires: a manifest follows within seconds, or the operation has failed.
PUBLISH_SECONDS = 1800.0


class Lease:
    """A lease: digests of chunks that must not be removed."""

    def __init__(self) -> None:
        self.digests: set[bytes] = set()
        #: The time of its expiry; None while its holder works.
        self.ends: float | None = None


class Leases:
    """The leases of one store. Not thread-safe: used under the store's lock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._leases: list[Lease] = []

    def take(self, digests: Collection[bytes] = ()) -> Lease:
        """Return a new lease on `digests`. A set is not copied, because it may be large: it must not change while the lease lasts."""
        lease = Lease()
        if digests:
            lease.digests = digests if isinstance(digests, set) else set(digests)
        self._leases.append(lease)
        return lease

    def await_publication(self, lease: Lease) -> None:
        """Start the expiry of a lease whose holder has finished; `published` ends it before."""
        lease.ends = self._clock() + PUBLISH_SECONDS

    def release(self, lease: Lease) -> None:
        """End a lease; may be called again."""
        if lease in self._leases:
            self._leases.remove(lease)

    def published(self, digests: set[bytes]) -> None:
        """End the leases that waited for a manifest with these `digests`."""
        self._leases = [
            lease for lease in self._leases if lease.ends is None or not lease.digests <= digests
        ]

    def any_of(self, digests: Collection[bytes]) -> bool:
        """Return whether one of these digests is under a lease."""
        now = self._clock()
        self._leases = [lease for lease in self._leases if lease.ends is None or lease.ends > now]
        return any(not lease.digests.isdisjoint(digests) for lease in self._leases)
