"""The journal of a batch run: a file with all messages of the kernel, from which the next runner continues.

The kernel alone knows how many messages it has written and where the last one ends. After a resume from an older snapshot the file is
longer than that. It is then replaced by a new file with its beginning, so that a reader notices. A file that is shorter or missing, as
on another machine, is written again from memory. The file is an output log (`jupyter_gpuckpt/wire/message_log.py`); the parts of a message
are preceded by the name of its channel and the kernel's clock in seconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from .sent_messages import copied

#: The most bytes of the journal that are kept in memory for another machine.
MAX_KEPT_BYTES = 32 << 20
_PIECE_BYTES = 1 << 20
#: The interval of attempts to write what found no room: the runner waits for it, and the kernel may have no other message.
RETRY_SECONDS = 1.0


class Journal:
    """The writer of a batch run's journal. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._path = ""
        #: The number of the last message and its end in the file.
        self._count = self._end = 0
        #: All frames, None if they exceed `MAX_KEPT_BYTES`. Those behind `_end` could not be written yet.
        self._kept: bytearray | None = bytearray()
        self._unwritten = b""
        self._is_retrying = False
        #: The requests that were executed: a runner that does not know whether one arrived sends it again.
        self._executed: set[str] = set()

    @property
    def is_kept(self) -> bool:
        """Return whether this kernel belongs to a batch run."""
        return bool(self._path)

    def opened(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Write to a file from now on; return the number of messages, the kernel's clock, and the error if it cannot be written."""
        with self._lock:
            self._path = asked["path"]
            trouble = self._write(b"")
            return {"count": self._count, "clock": time.monotonic(), "trouble": trouble}

    def add(self, channel: bytes, message: Sequence[Any]) -> None:
        """Add a message that is being sent; one that cannot be written is written as soon as that is possible."""
        if not self._path:
            return
        with self._lock:
            self._count += 1
            clock = repr(time.monotonic()).encode()
            trouble = self._write(_frame(self._count, [channel, clock, *copied(message)]))
            if trouble and not self._is_retrying:
                self._is_retrying = True
                threading.Thread(target=self._retry, name="gpuckpt-journal", daemon=True).start()

    def is_new(self, message_id: str) -> bool:
        """Return whether an execute request comes for the first time, and remember it."""
        if not self._path:
            return True
        with self._lock:
            known = message_id in self._executed
            self._executed.add(message_id)
            return not known

    def _retry(self) -> None:
        while self._is_retrying:
            time.sleep(RETRY_SECONDS)
            with self._lock:
                self._is_retrying = bool(self._write(b""))

    def _write(self, frame: bytes) -> str:
        if self._kept is not None and len(self._kept) + len(frame) > MAX_KEPT_BYTES:
            self._kept = None
        if self._kept is not None:
            self._kept += frame
        self._unwritten += frame
        try:
            size = os.stat(self._path).st_size if os.path.exists(self._path) else 0  # noqa: PTH110, PTH116
            if size != self._end:
                self._replace(size)
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                while self._unwritten:
                    written = os.pwrite(fd, self._unwritten, self._end)
                    self._end += written
                    self._unwritten = self._unwritten[written:]
            finally:
                os.close(fd)
        except OSError as error:
            return str(error)
        return ""

    def _replace(self, size: int) -> None:
        """Replace the file by one with another inode that ends with this kernel's last message."""
        if size < self._end and self._kept is None:
            raise OSError(
                "The journal is not on this machine, and it was too large to be kept in memory."
            )
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
        new = f"{self._path}.new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as target:
            if size < self._end:
                target.write(memoryview(self._kept or b"")[: self._end])
            else:
                with open(self._path, "rb") as source:  # noqa: PTH123
                    left = self._end
                    while piece := source.read(min(left, _PIECE_BYTES)):
                        target.write(piece)
                        left -= len(piece)
        os.replace(new, self._path)  # noqa: PTH105


def _frame(number: int, parts: Sequence[bytes]) -> bytes:
    """Return a frame of an output log; a kernel need not have a package for MessagePack."""
    frame = b"".join(
        [
            b"\x92\xcf" + number.to_bytes(8, "big"),  # an array of two, an integer of 64 bits
            b"\xdd" + len(parts).to_bytes(4, "big"),  # an array
            *(b"\xc6" + len(part).to_bytes(4, "big") + part for part in parts),  # bytes
        ]
    )
    return len(frame).to_bytes(4, "little") + frame
