"""Turns for servers of one machine: a few suspend their kernels at a time.

If all servers suspended at once, they would share the processors and end at about the same time. A deadline shortly before that would
leave nothing saved, because a half-done suspend saves nothing. But the machine may be busy with other work, and a server may hang. So
servers that wait begin in any case, evenly over the time that they can wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple


class _Entry(NamedTuple):
    """A server that waits. `at_once`: how many may hold a turn, this one included; `latest`: the loop's time when it begins in any case."""

    begins: asyncio.Future[None]
    at_once: int
    latest: float


class Turns:
    """A queue of servers, which begin in the order in which they came."""

    def __init__(self) -> None:
        self._taken = 0
        self._waiting: deque[_Entry] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self, at_once: int, within_seconds: float) -> AsyncIterator[None]:
        """Hold one of `at_once` turns (0: no limit). It begins after `within_seconds` at the latest, even if others do not end."""
        if not at_once:
            yield
            return
        await self._take(at_once, within_seconds)
        try:
            yield
        finally:
            self._taken -= 1
            self._admit()

    async def _take(self, at_once: int, within_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        entry = _Entry(loop.create_future(), at_once, loop.time() + within_seconds)
        self._waiting.append(entry)
        self._admit()
        try:
            # Not canceled with this task: the turn may just have been given.
            await asyncio.shield(entry.begins)
        except asyncio.CancelledError:
            if entry.begins.done():
                self._taken -= 1
            else:
                self._waiting.remove(entry)
            self._admit()
            raise

    def _admit(self) -> None:
        """Begin the turns that are free, and set the timer for the next server that waits."""
        while self._waiting and self._taken < self._waiting[0].at_once:
            self._begin_next()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            loop = asyncio.get_running_loop()
            # One by one, so that each of them begins in time.
            left = min(
                (entry.latest - loop.time()) / place
                for place, entry in enumerate(self._waiting, start=1)
            )
            self._timer = loop.call_later(max(0.0, left), self._begin_anyway)

    def _begin_anyway(self) -> None:
        self._begin_next()
        self._admit()

    def _begin_next(self) -> None:
        self._taken += 1
        self._waiting.popleft().begins.set_result(None)
