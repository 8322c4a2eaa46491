"""What the kernel said last, for the next server of one that was killed: nobody listened in between."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

#: Before the header there is the signature, before that this (jupyter_client.session.DELIM).
_DELIMITER = b"<IDS|MSG>"
_MOST_BYTES = 2 << 20
_MOST_REPLIES = 50

Parts = list[bytes]


class Said:
    """The last messages on iopub, and the last replies. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: deque[tuple[int, Parts]] = deque()
        self._bytes = 0
        self._replies: deque[Parts] = deque(maxlen=_MOST_REPLIES)

    def note(self, message: Sequence[Any]) -> None:
        """A message is being sent on iopub."""
        parts = copied(message)
        size = sum(map(len, parts))
        with self._lock:
            self._messages.append((size, parts))
            self._bytes += size
            while self._bytes > _MOST_BYTES:
                self._bytes -= self._messages.popleft()[0]

    def note_reply(self, reply: Sequence[Any]) -> None:
        """A reply is being sent."""
        self._replies.append(copied(reply))

    def after(self, message_id: str) -> tuple[list[Parts], bool]:
        """Return what was said after that message, as far as it is known; whether it is all."""
        with self._lock:
            messages = [parts for _, parts in self._messages]
        found = None
        for number, parts in enumerate(messages):
            if _says(parts, 2, message_id):
                found = number
        return messages[0 if found is None else found + 1 :], found is not None

    def replies_to(self, request_ids: Sequence[str]) -> list[Parts]:
        """Return what was answered to these requests."""
        return [
            reply for reply in list(self._replies) if any(_says(reply, 3, i) for i in request_ids)
        ]


def copied(message: Sequence[Any]) -> Parts:
    """A message as bytes, whatever it is sent as."""
    return [bytes(getattr(part, "bytes", part)) for part in message]


def _says(parts: Parts, place: int, message_id: str) -> bool:
    """Whether the part so far behind the delimiter (2: header, 3: parent header) names this message."""
    if not message_id or _DELIMITER not in parts:
        return False
    at = parts.index(_DELIMITER) + place
    return at < len(parts) and message_id.encode() in parts[at]
