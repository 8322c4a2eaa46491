"""Reader of a batch run's journal, in place of the kernel's sockets; the kernel writes the journal meanwhile."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import Any, BinaryIO

from jupyter_client.session import Session

from ..wire.message_log import next_frame

#: The shortest and longest pause between two reads of the file, in seconds; it doubles while no message comes.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.003, 0.05


class Rewound(Exception):  # noqa: N818 - no error: the reader starts over
    """The signal to read the journal again from its beginning: the kernel was resumed or lost, or the journal was replaced."""


class JournalReader:
    """A reader of the journal from its beginning. Each channel gets its messages once, in order."""

    def __init__(self, path: Path, known: int = 0) -> None:
        self._path = path
        #: The number of messages that an earlier reader may have handled, and the number of the last taken message.
        self._known, self._taken = known, 0
        self._file: BinaryIO | None = None
        # Without a key no signature is verified: a process that can write this file could also write the notebook.
        self._session = Session(key=b"")
        self._waiting: dict[str, deque[tuple[int, dict[str, Any]]]] = {
            "iopub": deque(),
            "shell": deque(),
        }
        #: The kernel's clock at the first message about each request.
        self.began: dict[str, float] = {}

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def look(self) -> bool:
        """Read the messages that were added to the file; return whether there were any. Raises Rewound if the file was replaced."""
        if self._file is None:
            if not self._path.exists():
                return False
            self._file = self._path.open("rb")
        found = False
        while (frame := next_frame(self._file)) is not None:
            self._add(*frame)
            found = True
        if not found and not self._is_same():
            raise Rewound
        return found

    def take(self, channel: str) -> dict[str, Any] | None:
        """Return the next message that `look` has read for a channel; None if there is none."""
        if not (waiting := self._waiting[channel]):
            return None
        self._taken, message = waiting.popleft()
        return message

    @property
    def repeats(self) -> bool:
        """Return whether an earlier reader may have handled the last taken message."""
        return self._taken <= self._known

    def _add(self, number: int, parts: list[bytes]) -> None:
        channel, clock, *rest = parts
        _, content = self._session.feed_identities(rest)
        message = self._session.deserialize(content)
        request_id = message["parent_header"].get("msg_id", "")
        self.began.setdefault(request_id, float(clock))
        self._waiting[channel.decode()].append((number, message))

    def _is_same(self) -> bool:
        if self._file is None:
            return True
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False


class JournalChannel:
    """A channel of a kernel client whose messages come from the journal; requests go to the kernel's socket.

    `check` is called while no message comes. It returns the kernel's clock in seconds, None while the kernel has no process, and may
    raise Rewound or another exception, which ends the wait.
    """

    def __init__(
        self,
        name: str,
        socket_channel: Any,  # noqa: ANN401 - jupyter_client has no type for its channels
        reader: JournalReader,
        check: Callable[[], float | None],
    ) -> None:
        self._name, self._socket_channel = name, socket_channel
        self._reader, self._check = reader, check
        #: The request whose reply is awaited, and the kernel's clock at the start of its timeout.
        self.awaited = ""
        self._since: float | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the socket's own
        return getattr(self._socket_channel, name)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message of one of nbclient's widgets to the kernel, unless an earlier runner may have sent it."""
        if not self._reader.repeats:
            self._socket_channel.send(message)

    def expect(self, request_id: str) -> None:
        """Deliver only the reply to this request from now on, and restart the timeout."""
        self.awaited, self._since = request_id, None

    async def get_msg(self, timeout: float | None = None) -> dict[str, Any]:  # noqa: ASYNC109 - as jupyter_client's
        """Return the next message. Raises queue.Empty `timeout` seconds, by the kernel's clock, after the awaited request began."""
        pause = _SHORTEST_PAUSE
        while True:
            while (message := self._reader.take(self._name)) is not None:
                if self._name == "iopub" or message["parent_header"].get("msg_id") == self.awaited:
                    return message
            clock = self._check()
            if self._reader.look():
                pause = _SHORTEST_PAUSE
                continue
            if timeout is not None and clock is not None:
                if self._since is None:
                    self._since = self._reader.began.get(self.awaited, clock)
                if clock - self._since >= timeout:
                    self._since = clock
                    raise Empty
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
