"""The kernel's last messages, kept for the server that follows a killed one: no server received them in between."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from .addresses import DELIMITER, HEADER, PARENT

_MAX_MESSAGES_BYTES = 2 << 20
_MAX_REPLIES = 50


class SentMessages:
    """A bounded buffer that keeps the kernel's last iopub messages and replies for the next server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: deque[tuple[int, list[bytes]]] = deque()
        self._bytes = 0
        self._replies: deque[list[bytes]] = deque(maxlen=_MAX_REPLIES)

    def note(self, message: Sequence[Any]) -> None:
        """Add a message that is being sent on iopub."""
        parts = copied(message)
        size = sum(map(len, parts))
        with self._lock:
            self._messages.append((size, parts))
            self._bytes += size
            while self._bytes > _MAX_MESSAGES_BYTES:
                self._bytes -= self._messages.popleft()[0]

    def forget(self) -> None:
        """Forget everything: this is a new kernel, which has sent nothing."""
        with self._lock:
            self._messages.clear()
            self._bytes = 0
        self._replies.clear()

    def note_reply(self, reply: Sequence[Any]) -> None:
        """Add a reply that is being sent."""
        self._replies.append(copied(reply))

    def after(self, message_id: str) -> tuple[list[list[bytes]], bool]:
        """Return the buffered messages after the one with this id, and whether these are all."""
        with self._lock:
            messages = [parts for _, parts in self._messages]
        found = None
        for number, parts in enumerate(messages):
            if _has_id(parts, HEADER, message_id):
                found = number
        return messages[0 if found is None else found + 1 :], found is not None

    def replies_to(self, request_ids: Sequence[str]) -> list[list[bytes]]:
        """Return the replies to these requests."""
        return [
            reply
            for reply in list(self._replies)
            if any(_has_id(reply, PARENT, i) for i in request_ids)
        ]


def copied(message: Sequence[Any]) -> list[bytes]:
    """Return the parts of a message as bytes."""
    return [bytes(getattr(part, "bytes", part)) for part in message]


def _has_id(parts: list[bytes], place: int, message_id: str) -> bool:
    """Return whether the header at `place` behind the delimiter has this message id."""
    if not message_id or DELIMITER not in parts:
        return False
    at = parts.index(DELIMITER) + place
    return at < len(parts) and message_id.encode() in parts[at]
