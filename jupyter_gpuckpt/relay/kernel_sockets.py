"""The relay's sockets to a kernel. Replies and output come from the journal instead, if the kernel has one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import zmq

from .editor_sockets import CHANNELS, address_of
from .signed_messages import Message, Signer

#: The relay's address at every kernel: one on all channels, so that questions of a cell find it, and the same after the relay was killed.
IDENTITY = b"gpuckpt-relay"


class KernelSockets:
    """Connections to one kernel. `writes_journal`: whether replies on shell, and output, may be dropped."""

    def __init__(
        self, context: zmq.Context[Any], connection: dict[str, Any], *, writes_journal: bool
    ) -> None:
        self._signer = Signer(connection.get("key", ""), connection.get("signature_scheme", ""))
        self._writes_journal = writes_journal
        self.sockets: dict[str, zmq.Socket[bytes]] = {}
        for name in (*CHANNELS, "iopub") if not writes_journal else CHANNELS:
            made = context.socket(zmq.SUB if name == "iopub" else zmq.DEALER)
            made.linger = 0
            made.setsockopt(zmq.RCVHWM, 0)
            if name == "iopub":
                made.subscribe(b"")
            else:
                made.setsockopt(zmq.SNDHWM, 0)
                made.identity = IDENTITY
            made.connect(address_of(connection, name))
            self.sockets[name] = made

    def close(self) -> None:
        """Close the connections."""
        for one in self.sockets.values():
            one.close(0)

    def send(self, channel: str, message: Message) -> None:
        """Send a client's request to the kernel, signed with the kernel's key."""
        self.send_parts(channel, message.idents, message.parts)

    def send_parts(self, channel: str, idents: Sequence[bytes], parts: Sequence[bytes]) -> None:
        """Send a message, signed with the kernel's key."""
        self.sockets[channel].send_multipart(self._signer.frames(idents, parts))

    def receive(self, channel: str, handle: Callable[[str, Message], None]) -> None:
        """Pass on what has come on a channel."""
        drops = self._writes_journal and channel != "control"
        with suppress(zmq.Again):
            while True:
                frames = self.sockets[channel].recv_multipart(zmq.NOBLOCK)
                if not drops and (message := self._signer.opened(frames)) is not None:
                    handle(channel, message)
