"""One start of an editor: its program, its sockets, its requests, and what is to be told to the person there."""

from __future__ import annotations

import json
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..wire.place import start_time
from .editor_sockets import EditorSockets
from .signed_messages import Author, Message

#: How many requests are remembered as this editor's.
_MAX_REQUESTS = 20_000


class Editor:
    """An editor's program and its sockets.

    `program`: the connection to it. `start`: what it has said about the kernel. `parent`: the process that started it.
    `handle_waiting`: handles the requests that wait, when there is a kernel.
    """

    def __init__(
        self,
        program: socket.socket,
        sockets: EditorSockets,
        start: dict[str, Any],
        parent: int,
        handle_waiting: Callable[[Editor], None],
    ) -> None:
        self.handle_waiting = handle_waiting
        self.program, self.sockets, self.start = program, sockets, start
        self.parent = (parent, start_time(parent))
        self.began, self.ended = time.monotonic(), 0.0
        #: Its `RelayedKernel`.
        self.kernel: Any = None
        #: The notebook, if the editor has named one.
        self.path = ""
        #: Whether a person has run a cell here: the kernel is not exchanged after that, except by a person.
        self.has_run_cell = False
        #: Whether a kernel is being chosen, started or awaited; requests wait meanwhile, each with its channel.
        self.is_choosing = False
        self.waiting: list[tuple[str, Message]] = []
        #: Lines for the output of the next cell that a person runs.
        self.notices: list[str] = []
        self.was_told_of_kept = False
        self._requests: OrderedDict[str, bool] = OrderedDict()
        self._author = Author()

    @property
    def has_living_parent(self) -> bool:
        """Return whether the process that started the program is still there."""
        pid, began = self.parent
        return began is not None and start_time(pid) == began

    def note_request(self, message: Message, *, by_person: bool = False) -> None:
        """Remember a request as this editor's."""
        self._requests[message.header.msg_id] = by_person
        if len(self._requests) > _MAX_REQUESTS:
            self._requests.popitem(last=False)

    def has_sent(self, request_id: str) -> bool:
        """Return whether a request is this editor's."""
        return request_id in self._requests

    def was_by_person(self, request_id: str) -> bool:
        """Return whether a request is a cell that a person has run here."""
        return self._requests.get(request_id, False)

    def tell(self, **told: Any) -> None:  # noqa: ANN401 - what the program understands
        """Tell the program something. One that has ended is noticed elsewhere."""
        with suppress(OSError):
            self.program.sendall(json.dumps(told).encode() + b"\n")

    def publish(self, kind: str, content: dict[str, Any], parent: bytes) -> None:
        """Publish a message of the relay's own."""
        self.sockets.send("iopub", [kind.encode()], self._author.parts(kind, content, parent))

    def print(self, text: str, parent: bytes, name: str = "stdout") -> None:
        """Show a text as output of a request."""
        self.publish("stream", {"name": name, "text": text}, parent)

    def answer(self, channel: str, request: Message, content: dict[str, Any]) -> None:
        """Answer a request on behalf of the kernel, which counts as busy meanwhile for the client."""
        self.publish("status", {"execution_state": "busy"}, request.parts[0])
        self.reply(channel, request, content)
        self.publish("status", {"execution_state": "idle"}, request.parts[0])

    def reply(self, channel: str, request: Message, content: dict[str, Any]) -> None:
        """Send the reply to a request."""
        kind = request.header.msg_type.replace("_request", "_reply")
        parts = self._author.parts(kind, content, request.parts[0])
        self.sockets.send(channel, request.idents, parts)

    def greet(self, topics: list[bytes]) -> None:
        """Tell clients that their subscriptions have arrived, as ipykernel 7 does."""
        for topic in topics:
            content = {"subscription": topic.decode(errors="replace")}
            self.sockets.send("iopub", [topic], self._author.parts("iopub_welcome", content))

    def close(self) -> None:
        """Close the sockets and the connection to the program."""
        self.ended = self.ended or time.monotonic()
        self.sockets.close()
        with suppress(OSError):
            self.program.close()


def is_of_this_user(program: socket.socket) -> bool:
    """Return whether the process at the other end of a socket belongs to this user."""
    credentials = program.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], "little") == os.getuid()
