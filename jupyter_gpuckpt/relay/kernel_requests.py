"""Requests on a kernel's control channel by the relay itself: they block, and have a connection of their own."""

from __future__ import annotations

import time
import uuid
from typing import Any, Self

import msgspec
import zmq

from ..client.agent_code import AGENT_REQUEST, PROBE_SESSION
from .editor_sockets import address_of
from .signed_messages import Signer, header_in


class KernelRequests:
    """A connection to the control channel; a context manager that closes it."""

    def __init__(self, context: zmq.Context[Any], connection: dict[str, Any]) -> None:
        self._signer = Signer(connection.get("key", ""), connection.get("signature_scheme", ""))
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(address_of(connection, "control"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._socket.close(0)

    def ask(self, kind: str, content: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request; return the content of its reply, empty if none comes in time."""
        request_id = uuid.uuid4().hex
        header = {
            "msg_id": request_id,
            "msg_type": kind,
            "session": PROBE_SESSION,
            "username": "gpuckpt",
            "date": "",
            "version": "5.4",
        }
        parts = [msgspec.json.encode(header), b"{}", b"{}", msgspec.json.encode(content)]
        self._socket.send_multipart(self._signer.frames([], parts))
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not self._socket.poll(int(left * 1000) + 1):
                break
            message = self._signer.opened(self._socket.recv_multipart())
            if message is not None and header_in(message.parts[1]).msg_id == request_id:
                return message.content
        return {}

    def ask_agent(self, op: str, seconds: float, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - parts of a message
        """Send the agent a request; return the content of its reply, empty if it does not answer in time."""
        return self.ask(AGENT_REQUEST, {"op": op, **arguments}, seconds)
