"""The end of a kernel's journal: its new messages, one after the other, also when the kernel has replaced the file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from ..wire import decoding
from .signed_messages import Message, unsigned

_LENGTH_BYTES = 4
#: How much is read at once.
_PIECE_BYTES = 1 << 20


class JournalTail:
    """A reader of the messages after a number."""

    def __init__(self, path: Path, after: int) -> None:
        self.path, self._last = path, after
        self._file: BinaryIO | None = None
        self._data, self._at = b"", 0
        self._waiting: tuple[int, str, Message] | None = None

    @property
    def last(self) -> int:
        """Return the number of the last message that was taken."""
        return self._last

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._data, self._at, self._waiting = None, b"", 0, None

    def go_to(self, number: int) -> None:
        """Continue after another message."""
        self.close()
        self._last = number

    def peek(self) -> tuple[int, str, Message] | None:
        """Return number, channel and content of the next message, without taking it; None while there is none."""
        while self._waiting is None:
            frame = self._next_frame()
            if frame is None:
                return None
            number, parts = decoding.from_msgpack(frame, tuple[int, list[bytes]])
            if number <= self._last:
                continue
            channel, _clock, *rest = parts
            message = unsigned(rest)
            if message is None:
                self._last = number
                continue
            self._waiting = number, channel.decode(), message
        return self._waiting

    def take(self) -> None:
        """Take the message that `peek` has returned."""
        if self._waiting is not None:
            self._last, self._waiting = self._waiting[0], None

    def _next_frame(self) -> bytes | None:
        while True:
            begin = self._at + _LENGTH_BYTES
            if len(self._data) >= begin:
                end = begin + int.from_bytes(self._data[self._at : begin], "little")
                if len(self._data) >= end:
                    frame, self._at = self._data[begin:end], end
                    return frame
            if not self._read_more():
                return None

    def _read_more(self) -> bool:
        if self._file is None:
            try:
                self._file = self.path.open("rb", buffering=0)
            except FileNotFoundError:
                return False
        piece = self._file.read(_PIECE_BYTES)
        if piece:
            self._data, self._at = self._data[self._at :] + piece, 0
            return True
        if self._is_same():
            return False
        # The messages that were taken are skipped by their numbers.
        self._file.close()
        self._file, self._data, self._at = None, b"", 0
        return True

    def _is_same(self) -> bool:
        if self._file is None:
            return True
        opened = os.fstat(self._file.fileno())
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return True
        return os.path.samestat(opened, now) and now.st_size >= self._file.tell()


def messages_between(path: Path, first: int, last: int) -> list[tuple[int, str, Message]]:
    """Return the messages of a journal from number `first` to `last`, as far as it still has them."""
    tail, found = JournalTail(path, first - 1), []
    try:
        while (waiting := tail.peek()) is not None and waiting[0] <= last:
            found.append(waiting)
            tail.take()
    finally:
        tail.close()
    return found
