"""The journal of a kernel: a file with its messages, from which the next runner of a batch run, or an editor's relay, continues.

The kernel alone knows how many messages it has written and where the last one ends. After a resume from an older snapshot the file is
longer than that. It is then replaced by a new file with its beginning, so that a reader notices. A file that is shorter or missing, as
on another machine, is written again from memory. The file is an output log (`jupyter_gpuckpt/wire/message_log.py`); the parts of a message
are preceded by the name of its channel and the kernel's clock in seconds.

A batch run's journal has all messages. A relay's is bounded: the relay says which messages its clients have, and these are cut off, as
are the oldest ones of a journal that nobody cuts. Nothing of it is kept in memory. The number of its first message shows a kernel that
was resumed from an older snapshot whether the file was cut since; then it begins a new one.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, BinaryIO

from .sent_messages import copied

#: The most bytes of the journal that are kept in memory for another machine.
MAX_KEPT_BYTES = 32 << 20
_PIECE_BYTES = 1 << 20
#: The size at which a bounded journal that nobody cuts loses its older half.
MAX_FILE_BYTES = 64 << 20
#: The bytes before a frame's parts: its length, the array's mark, and its number with a mark.
_HEAD_BYTES = 14
#: How many ids of requests are remembered: a relay repeats only those that have no reply yet.
_MAX_REQUESTS = 10_000
#: The interval of attempts to write what found no room: the runner waits for it, and the kernel may have no other message.
RETRY_SECONDS = 1.0


class Journal:
    """The writer of a journal, after `count` messages that are no longer kept. Thread-safe."""

    def __init__(self, count: int = 0) -> None:
        self._lock = threading.Lock()
        self._path = ""
        #: The number of the last message and its end in the file.
        self._count, self._end = count, 0
        #: All frames, None if they exceed `MAX_KEPT_BYTES`. Those behind `_end` could not be written yet.
        self._kept: bytearray | None = bytearray()
        self._unwritten = b""
        self._is_retrying = False
        #: The requests that were executed: a runner that does not know whether one arrived sends it again.
        self._executed: OrderedDict[str, None] = OrderedDict()
        #: Whether messages are cut off; then the number of the last one that was, and the file's inode.
        self.is_bounded = False
        self._cut = self._inode = 0
        #: The number of messages before the last resume.
        self._resumed_at = 0

    @property
    def is_kept(self) -> bool:
        """Return whether this kernel writes a journal."""
        return bool(self._path)

    def opened(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Write to a file from now on; return the number of messages, the kernel's clock, and the error if it cannot be written.

        With `received`, the journal is bounded, and the messages up to this number are cut off.
        """
        with self._lock:
            if self._path != asked["path"] and "received" in asked:
                self.is_bounded, self._kept, self._end, self._cut = True, None, 0, self._count
            self._path = asked["path"]
            trouble = self._write(b"")
            if not trouble and self.is_bounded and asked.get("received", 0) > self._cut:
                trouble = self._cut_off(min(asked["received"], self._count))
            return {
                "count": self._count,
                "resumed_at": self._resumed_at,
                "clock": time.monotonic(),
                "trouble": trouble,
            }

    def note_resume(self) -> None:
        """Remember the number of messages before a resume."""
        with self._lock:
            self._resumed_at = self._count

    def keep_only(self, path: str) -> None:
        """Stop writing a bounded journal, unless it is at `path`: no relay has the kernel any more."""
        with self._lock:
            if self.is_bounded and self._path != path:
                self._path, self._unwritten, self.is_bounded = "", b"", False
                self._executed.clear()

    def add(self, channel: bytes, message: Sequence[Any]) -> None:
        """Add a message that is being sent; one that cannot be written is written as soon as that is possible."""
        if not self._path:
            return
        with self._lock:
            if not self._path:
                return
            self._count += 1
            clock = repr(time.monotonic()).encode()
            trouble = self._write(_frame(self._count, [channel, clock, *copied(message)]))
            if trouble and not self._is_retrying:
                self._is_retrying = True
                threading.Thread(target=self._retry, name="gpuckpt-journal", daemon=True).start()

    def is_new(self, message_id: str) -> bool:
        """Return whether a request comes for the first time, and remember it."""
        if not self._path:
            return True
        with self._lock:
            known = message_id in self._executed
            self._executed[message_id] = None
            if self.is_bounded and len(self._executed) > _MAX_REQUESTS:
                self._executed.popitem(last=False)
            return not known

    def _retry(self) -> None:
        while self._is_retrying:
            time.sleep(RETRY_SECONDS)
            with self._lock:
                self._is_retrying = bool(self._path and self._write(b""))

    def _write(self, frame: bytes) -> str:
        if self._kept is not None and len(self._kept) + len(frame) > MAX_KEPT_BYTES:
            self._kept = None
        if self._kept is not None:
            self._kept += frame
        self._unwritten += frame
        try:
            if self.is_bounded:
                self._check_file()
            else:
                size = os.stat(self._path).st_size if os.path.exists(self._path) else 0  # noqa: PTH110, PTH116
                if size != self._end:
                    self._replace(size)
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                while self._unwritten:
                    written = os.pwrite(fd, self._unwritten, self._end)
                    self._end += written
                    self._unwritten = self._unwritten[written:]
                self._inode = os.fstat(fd).st_ino
            finally:
                os.close(fd)
        except OSError as error:
            return str(error)
        if self.is_bounded and self._end > MAX_FILE_BYTES:
            return self._cut_off(None)
        return ""

    def _check_file(self) -> None:
        """Make sure that a bounded journal's file ends with this kernel's last message, after a resume for instance."""
        try:
            now = os.stat(self._path)  # noqa: PTH116
        except FileNotFoundError:
            now = None
        if now is not None and (now.st_ino, now.st_size) == (self._inode, self._end):
            return
        if now is not None and self._end and now.st_size >= self._end:
            with open(self._path, "rb") as file:  # noqa: PTH123
                if _next_number(file) == self._cut + 1:
                    if now.st_size > self._end:
                        self._replace(now.st_size)
                    return
        # It is missing, or was cut since the snapshot: its messages were received then.
        if now is not None or self._end:
            self._write_new(0, 0)
        self._end, self._cut = 0, self._count - _frames_in(self._unwritten)

    def _cut_off(self, received: int | None) -> str:
        """Remove the messages up to a number from the file, or its older half; return the error if that is not possible."""
        try:
            with open(self._path, "rb") as file:  # noqa: PTH123
                begin, cut = 0, self._cut
                while (number := _next_number(file)) and (
                    number <= received if received is not None else begin < self._end // 2
                ):
                    begin, cut = file.tell(), number
            self._write_new(begin, self._end - begin)
        except OSError as error:
            return str(error)
        self._end, self._cut = self._end - begin, cut
        self._inode = os.stat(self._path).st_ino  # noqa: PTH116
        return ""

    def _replace(self, size: int) -> None:
        """Replace the file by one with another inode that ends with this kernel's last message."""
        if size < self._end and self._kept is None:
            raise OSError(
                "The journal is not on this machine, and it was too large to be kept in memory."
            )
        if size < self._end:
            self._write_new(0, 0, memoryview(self._kept or b"")[: self._end])
        else:
            self._write_new(0, self._end)

    def _write_new(self, begin: int, count: int, content: Any = b"") -> None:
        """Replace the file by one with `content` and then a part of the former file."""
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
        new = f"{self._path}.new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as target:
            target.write(content)
            if count:
                with open(self._path, "rb") as source:  # noqa: PTH123
                    source.seek(begin)
                    while count and (piece := source.read(min(count, _PIECE_BYTES))):
                        target.write(piece)
                        count -= len(piece)
        os.replace(new, self._path)  # noqa: PTH105


def _next_number(file: BinaryIO) -> int:
    """Return the number of the next frame and skip the frame; 0 at the file's end."""
    head = file.read(_HEAD_BYTES)
    if len(head) < _HEAD_BYTES:
        return 0
    file.seek(int.from_bytes(head[:4], "little") - (_HEAD_BYTES - 4), os.SEEK_CUR)
    return int.from_bytes(head[6:14], "big")


def _frames_in(data: bytes) -> int:
    """Return the number of frames in the data."""
    count = at = 0
    while at < len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "little")
        count += 1
    return count


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
