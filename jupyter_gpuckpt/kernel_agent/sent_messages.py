"""The kernel's last messages, kept for the next server after one that was killed: no server received them in between."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

#: The delimiter before the signature and the header (jupyter_client.session.DELIM).
_DELIMITER = b"<IDS|MSG>"
_MOST_BYTES = 2 << 20
_MOST_REPLIES = 50

Parts = list[bytes]


class SentMessages:
    """A bounded buffer that keeps the kernel's last iopub messages and replies for the next server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: deque[tuple[int, Parts]] = deque()
        self._bytes = 0
        self._replies: deque[Parts] = deque(maxlen=_MOST_REPLIES)

    def note(self, message: Sequence[Any]) -> None:
        """Keep a message that is being sent on iopub."""
        parts = copied(message)
        size = sum(map(len, parts))
        with self._lock:
            self._messages.append((size, parts))
            self._bytes += size
            while self._bytes > _MOST_BYTES:
                self._bytes -= self._messages.popleft()[0]

    def note_reply(self, reply: Sequence[Any]) -> None:
        """Keep a reply that is being sent."""
        self._replies.append(copied(reply))

    def after(self, message_id: str) -> tuple[list[Parts], bool]:
        """Return the messages after that one, as far as they are kept, and whether these are all."""
        with self._lock:
            messages = [parts for _, parts in self._messages]
        found = None
        for number, parts in enumerate(messages):
            if _says(parts, 2, message_id):
                found = number
        return messages[0 if found is None else found + 1 :], found is not None

    def replies_to(self, request_ids: Sequence[str]) -> list[Parts]:
        """Return the replies to these requests."""
        return [
            reply for reply in list(self._replies) if any(_says(reply, 3, i) for i in request_ids)
        ]


def copied(message: Sequence[Any]) -> Parts:
    """Return the parts of a message as bytes."""
    return [bytes(getattr(part, "bytes", part)) for part in message]


def _says(parts: Parts, place: int, message_id: str) -> bool:
    """Return whether the part `place` behind the delimiter (2: header, 3: parent header) names this message."""
    if not message_id or _DELIMITER not in parts:
        return False
    at = parts.index(_DELIMITER) + place
    return at < len(parts) and message_id.encode() in parts[at]
