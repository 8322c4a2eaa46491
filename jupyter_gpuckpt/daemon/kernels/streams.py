"""Ordered streams of events: for owners about their kernels and operations, and for other clients about one operation.

A stream begins with a full state; then every change follows in order, with its position. So a reader knows the daemon's state at
the position of the last event that it read. A reader that is too slow gets a new full state.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ...wire.protocol import KEEP_ALIVE_SECONDS, Event, Operation, Position

#: The most events that are queued for a reader.
MAX_WAITING_EVENTS = 256


class Stream:
    """A queue of events for one reader. `state` makes a full state; `concerns` selects its events by event and owner id."""

    def __init__(
        self, state: Callable[[], Event], concerns: Callable[[Event, str], bool], streams: Streams
    ) -> None:
        self.concerns = concerns
        self._state, self._streams = state, streams
        self._waiting: deque[Event] = deque()
        #: Whether the next event for the reader is a full state.
        self._is_behind = True
        self._is_closed = False
        self._woken = asyncio.Event()

    def put(self, event: Event, *, droppable: bool) -> None:
        """Queue an event. A `droppable` one is left out while others wait, because a later one replaces it."""
        if self._is_behind or (droppable and self._waiting):
            return
        if len(self._waiting) >= MAX_WAITING_EVENTS:
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
        """Return whether the reader has received all events."""
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
    """A table of the open streams, with the position of the latest event."""

    def __init__(self) -> None:
        # All daemons of a place belong to one boot, so a later one has a larger number even if the wall clock is changed.
        self._position = Position(time.clock_gettime_ns(time.CLOCK_BOOTTIME), 0)
        self._open: list[Stream] = []

    def __len__(self) -> int:
        return len(self._open)

    @property
    def position(self) -> Position:
        """Return the position for a record that is made now."""
        return self._position

    def advance(self) -> Position:
        """Return the position of a new event: later records are newer than all earlier ones."""
        self._position = Position(self._position.incarnation, self._position.number + 1)
        return self._position

    def publish(self, event: Event, owner_id: str = "", *, droppable: bool = False) -> None:
        """Queue an event about this owner's objects ("": no owner's) in every stream that it concerns."""
        for stream in self._open:
            if stream.concerns(event, owner_id):
                stream.put(event, droppable=droppable)

    def publish_operation(self, operation: Operation, owner_id: str = "") -> None:
        """Publish an operation that changes no kernel's record. A slow reader may miss progress, but never an end."""
        event = Event(self.advance(), operation=operation)
        self.publish(event, owner_id, droppable=not operation.is_over)

    @contextmanager
    def opened(
        self, state: Callable[[], Event], concerns: Callable[[Event, str], bool]
    ) -> Iterator[Stream]:
        """Open a stream for the duration of the block; yield it."""
        stream = Stream(state, concerns, self)
        self._open.append(stream)
        try:
            yield stream
        finally:
            self._open.remove(stream)
