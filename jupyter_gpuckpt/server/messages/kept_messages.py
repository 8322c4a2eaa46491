"""The messages of a kernel that are kept for pages: in a file, and in memory while the disk is full."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from ...wire.message_log import frame_of, next_frame, opened, unpacked

_log = logging.getLogger(__name__)


class KeptMessages:
    """The kept messages of one kernel, with their numbers. No method raises an error of the disk, except the iteration.

    A message that finds no room in the file stays in memory until one finds room; only a server that goes on has it then.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        #: The bytes of complete frames in the file.
        self._written = 0
        self._in_memory: deque[tuple[int, bytes]] = deque()
        self._memory_bytes = 0
        #: Whether the log says that messages are kept in memory only.
        self._is_told = False

    @property
    def size(self) -> int:
        """Return the bytes of all frames."""
        return self._written + self._memory_bytes

    @property
    def unwritten(self) -> int:
        """Return the number of messages that are only in memory."""
        return len(self._in_memory)

    def __iter__(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield all messages, including those that are added meanwhile. Raises OSError, ValueError, LookupError."""
        last, file = 0, None
        with ExitStack() as closing:
            while True:
                if file is None and self._written:
                    file = closing.enter_context(self._path.open("rb"))
                found = next_frame(file) if file is not None else None
                found = found or self._unwritten_after(last)
                if found is None:
                    return
                if found[0] > last:  # else it has moved to the file since it was read from memory
                    last = found[0]
                    yield found

    def add(self, number: int, parts: list[bytes]) -> None:
        """Keep a message."""
        frame = frame_of(number, parts)
        self._in_memory.append((number, frame))
        self._memory_bytes += len(frame)
        try:
            self._write()
            self._is_told = False
        except OSError as error:
            if not self._is_told:
                self._is_told = True
                _log.warning(
                    "Output of a kernel is kept only in memory, and is lost if this server ends: %s: %s",
                    error.strerror, self._path,
                )  # fmt: skip
            self._remove_incomplete()

    def load(self) -> bool:
        """Continue with the file of an earlier server; return whether there is one."""
        try:
            self._written = self._path.stat().st_size
        except OSError:
            return False
        return True

    def clear(self) -> None:
        """Drop all messages, and the file."""
        self.close()
        self._written = self._memory_bytes = 0
        self._in_memory.clear()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file, which stays for the next server."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1

    def _write(self) -> None:
        """Write what is in memory to the file. Raises OSError, and then leaves what is in memory there."""
        if self._descriptor < 0:
            self._descriptor = opened(self._path)
        while self._in_memory:
            frame = self._in_memory[0][1]
            left = memoryview(frame)
            while left:
                left = left[os.write(self._descriptor, left) :]
            self._in_memory.popleft()
            self._written += len(frame)
            self._memory_bytes -= len(frame)

    def _remove_incomplete(self) -> None:
        """Remove a frame that was written in part."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._written)

    def _unwritten_after(self, number: int) -> tuple[int, list[bytes]] | None:
        return next((unpacked(frame) for other, frame in self._in_memory if other > number), None)
