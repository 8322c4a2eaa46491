"""Pins in use: a running operation relies on their chunks, so these must not be removed although no manifest refers to them.

A writer has a pin on every chunk that it wrote or found in the store. The pin outlives the writer until a manifest that covers it is
published, so that no deletion in between removes a chunk; without such a manifest the pin expires. Readers have pins on the chunks
that they read. Users' pins, which are annotations, keep whole snapshots.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

#: The time after a writer's end at which its pin expires: a manifest follows within seconds, or the operation has failed.
PUBLISH_SECONDS = 1800.0


class PinInUse:
    """A pin in use: digests of chunks that must not be removed."""

    def __init__(self) -> None:
        self.digests: set[bytes] = set()
        #: The time of its expiry; None while its holder works.
        self.ends: float | None = None


class PinsInUse:
    """The pins in use of one store. Not thread-safe: used under the store's lock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pins: list[PinInUse] = []

    def take(self, digests: Collection[bytes] = ()) -> PinInUse:
        """Return a new pin on `digests`. A set is not copied, because it may be large: it must not change while the pin lasts."""
        pin = PinInUse()
        if digests:
            pin.digests = digests if isinstance(digests, set) else set(digests)
        self._pins.append(pin)
        return pin

    def await_publication(self, pin: PinInUse) -> None:
        """Start the expiry of a pin whose holder has finished; `published` ends it before."""
        pin.ends = self._clock() + PUBLISH_SECONDS

    def release(self, pin: PinInUse) -> None:
        """End a pin; may be called again."""
        if pin in self._pins:
            self._pins.remove(pin)

    def published(self, digests: set[bytes]) -> None:
        """End the pins that waited for a manifest with these `digests`."""
        self._pins = [pin for pin in self._pins if pin.ends is None or not pin.digests <= digests]

    def any_of(self, digests: Collection[bytes]) -> bool:
        """Return whether one of these digests is under a pin."""
        now = self._clock()
        self._pins = [pin for pin in self._pins if pin.ends is None or pin.ends > now]
        return any(not pin.digests.isdisjoint(digests) for pin in self._pins)
