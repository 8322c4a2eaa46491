"""Ordered streams of events: what the daemon tells owners of their kernels and operations, and others of one operation.

A stream begins with a full state; then comes every change in order, with its position. A reader knows what the daemon knew at
the position of the event that it read last. One that is too slow gets a new full state.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ..protocol import KEEP_ALIVE_SECONDS, Event, Position

#: Events that may wait for a reader.
MOST_WAITING = 256


class Stream:
    """Queue of events for one reader. `state` makes a full one; `concerns` says which events it gets, by event and owner."""

    def __init__(
        self, state: Callable[[], Event], concerns: Callable[[Event, str], bool], streams: Streams
    ) -> None:
        self.concerns = concerns
        self._state, self._streams = state, streams
        self._waiting: deque[Event] = deque()
        #: Whether what the reader gets next is a full state.
        self._is_behind = True
        self._is_closed = False
        self._woken = asyncio.Event()

    def put(self, event: Event, *, droppable: bool) -> None:
        """Queue an event. One that is `droppable` is left out while others wait: a later one says more."""
        if self._is_behind or (droppable and self._waiting):
            return
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.clear()
            self._is_behind = True
        else:
            self._waiting.append(event)
        self._woken.set()

    def close(self) -> None:
        """Make `next` return None."""
        self._is_closed = True
        self._woken.set()

    @property
    def is_empty(self) -> bool:
        """Return whether the reader has been given everything."""
        return not (self._waiting or self._is_behind)

    async def next(self) -> Event | None:
        """Return the next event, an empty one after a while without any, None when the stream is closed."""
        if self.is_empty and not self._is_closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    await self._woken.wait()
        self._woken.clear()
        if self._is_closed:
            return None
        if self._is_behind:
            self._is_behind = False
            return self._state()
        return self._waiting.popleft() if self._waiting else Event(self._streams.position)


class Streams:
    """Table of the open streams, and the position of the latest event."""

    def __init__(self) -> None:
        # All daemons of a place belong to one boot, so a later one has a larger number, whatever happens to the clock.
        self._position = Position(time.clock_gettime_ns(time.CLOCK_BOOTTIME), 0)
        self._open: list[Stream] = []

    def __len__(self) -> int:
        return len(self._open)

    @property
    def position(self) -> Position:
        """Return the position of a record that is made now."""
        return self._position

    def advance(self) -> Position:
        """Return the position of a new event: records that are made from now on are newer than all before."""
        self._position = Position(self._position.incarnation, self._position.number + 1)
        return self._position

    def publish(self, event: Event, owner_id: str = "", *, droppable: bool = False) -> None:
        """Give an event about something of this owner, or of nobody, to every stream that it concerns."""
        for stream in self._open:
            if stream.concerns(event, owner_id):
                stream.put(event, droppable=droppable)

    @contextmanager
    def opened(
        self, state: Callable[[], Event], concerns: Callable[[Event, str], bool]
    ) -> Iterator[Stream]:
        """Hold a stream for as long as its reader is there."""
        stream = Stream(state, concerns, self)
        self._open.append(stream)
        try:
            yield stream
        finally:
            self._open.remove(stream)
