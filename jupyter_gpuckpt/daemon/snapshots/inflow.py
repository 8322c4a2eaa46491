"""A bounded pipe that passes the body of a request from the event loop to a thread that reads it."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from ...errors import OperationCancelled

#: The buffered bytes beyond which the sender has to wait.
MAX_BUFFERED_BYTES = 4 << 20


class Inflow:
    """A bounded pipe: `put`, `end` and `cut_off` belong to the event loop's thread, `take` and `close` to the reader's."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Event()
        self._room.set()
        self._changed = threading.Condition()
        self._pieces: deque[bytes] = deque()
        self._bytes = 0
        self._ended = self._cut_off = self._closed = False

    async def put(self, piece: bytes) -> None:
        """Add a piece and wait until there is room for more. After `close` pieces are discarded."""
        with self._changed:
            if self._closed:
                return
            self._pieces.append(piece)
            self._bytes += len(piece)
            self._changed.notify()
            if self._bytes > MAX_BUFFERED_BYTES:
                self._room.clear()
        await self._room.wait()

    def end(self) -> None:
        """Mark the end of the body."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def cut_off(self) -> None:
        """Make `take` raise, because the sender has disconnected or is refused."""
        with self._changed:
            self._cut_off = True
            self._changed.notify()

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes, fewer only at the end. Raises OperationCancelled after `cut_off`."""
        taken = bytearray()
        while len(taken) < count:
            with self._changed:
                while not (self._pieces or self._ended or self._cut_off):
                    self._changed.wait()
                if self._cut_off:
                    raise OperationCancelled("The archive was not sent completely.")
                if not self._pieces:
                    break
                piece = self._pieces.popleft()
                wanted = count - len(taken)
                taken += piece[:wanted]
                if len(piece) > wanted:
                    self._pieces.appendleft(piece[wanted:])
                self._bytes -= min(wanted, len(piece))
                if self._bytes <= MAX_BUFFERED_BYTES:
                    self._make_room()
        return bytes(taken)

    def close(self) -> None:
        """Stop reading the request's body, and discard what was received."""
        with self._changed:
            self._closed = True
            self._pieces.clear()
            self._bytes = 0
            self._make_room()

    def _make_room(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._room.set)
