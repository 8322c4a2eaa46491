"""The requests that a kernel has not answered, on disk: those that a killed kernel, relay or connection has lost are sent again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..wire.message_log import frame_of, next_frame, opened
from .signed_messages import Message

#: The size at which the file of a kernel that always has a request is written anew.
_MAX_BYTES = 1 << 20


class WaitingRequests:
    """The requests on shell without a reply, oldest first."""

    def __init__(self, path: Path) -> None:
        self._path, self._messages = path, dict[str, Message]()
        if path.exists():
            with path.open("rb") as file:
                # The last frame is incomplete if its writer was killed.
                while (frame := next_frame(file)) is not None:
                    self._read(*frame)
        self._fd = opened(path)
        self._bytes = os.fstat(self._fd).st_size

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(list(self._messages.values()))

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._messages

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def add(self, request_id: str, message: Message) -> None:
        """Add a request before it is sent."""
        self._messages[request_id] = message
        self._append(frame_of(len(message.idents) + 1, [*message.idents, *message.parts]))

    def remove(self, request_id: str) -> Message | None:
        """Remove a request that was answered; return it."""
        message = self._messages.pop(request_id, None)
        if message is None:
            return None
        if self._messages and self._bytes < _MAX_BYTES:
            self._append(frame_of(0, [request_id.encode()]))
        else:
            os.ftruncate(self._fd, 0)
            self._bytes = 0
            for other in self._messages.values():
                self._append(frame_of(len(other.idents) + 1, [*other.idents, *other.parts]))
        return message

    def _read(self, number: int, parts: list[bytes]) -> None:
        if number == 0:
            self._messages.pop(parts[0].decode(), None)
        else:
            message = Message(parts[: number - 1], parts[number - 1 :])
            self._messages[message.header.msg_id] = message

    def _append(self, frame: bytes) -> None:
        # A frame that a full disk cuts off would hide those behind it. The request is in memory, too.
        with suppress(OSError):
            if os.write(self._fd, frame) == len(frame):
                self._bytes += len(frame)
            else:
                os.ftruncate(self._fd, self._bytes)
