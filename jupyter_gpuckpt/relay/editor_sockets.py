"""The sockets that one start of an editor connects to: bound at its ports, with its key."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import zmq

from .signed_messages import Message, Signer

#: The channels on which an editor sends requests.
CHANNELS = ("shell", "control", "stdin")
#: How many messages wait in memory for an editor that reads slowly; the others wait in the journal.
_MOST_WAITING = 5_000
_LINGER_MILLISECONDS = 500


class EditorSockets:
    """Five bound sockets. Messages that cannot be delivered now are refused, never dropped."""

    def __init__(self, context: zmq.Context[Any], connection: dict[str, Any]) -> None:
        """Bind the sockets of a connection file. Raises ZMQError if a port is not free."""
        self.signer = Signer(connection.get("key", ""), connection.get("signature_scheme", ""))
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        kinds = dict.fromkeys(CHANNELS, zmq.ROUTER) | {"hb": zmq.ROUTER, "iopub": zmq.XPUB}
        try:
            for name, kind in kinds.items():
                self._sockets[name] = _bound(context, name, kind, connection)
        except zmq.ZMQError:
            self.close()
            raise
        self._topics = set[bytes]()
        #: When the last client disconnected (time.monotonic); 0: one is connected, or none has come.
        self.left_at = 0.0

    @property
    def has_subscriber(self) -> bool:
        """Return whether a client is connected that has subscribed to the output."""
        return bool(self._topics)

    def __getitem__(self, name: str) -> zmq.Socket[bytes]:
        return self._sockets[name]

    def close(self) -> None:
        """Close the sockets, so that another start may have the ports."""
        for one in self._sockets.values():
            one.close(_LINGER_MILLISECONDS)

    def received(self, channel: str) -> list[Message]:
        """Return the requests that have come on a channel, without those whose signature is wrong."""
        found = []
        for _ in range(100):
            try:
                frames = self._sockets[channel].recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if (message := self.signer.opened(frames)) is not None:
                found.append(message)
        return found

    def echo(self) -> None:
        """Answer heartbeats."""
        with suppress(zmq.Again):
            while True:
                self["hb"].send_multipart(self["hb"].recv_multipart(zmq.NOBLOCK), zmq.NOBLOCK)

    def note_subscriptions(self) -> list[bytes]:
        """Read subscriptions; return the topics of new ones."""
        topics = []
        with suppress(zmq.Again):
            while True:
                frame = self["iopub"].recv(zmq.NOBLOCK)
                if frame[:1] == b"\1":
                    topics.append(frame[1:])
                    self._topics.add(frame[1:])
                else:  # nobody has this subscription any more
                    self._topics.discard(frame[1:])
                self.left_at = 0.0 if self._topics else time.monotonic()
        return topics

    def send(self, channel: str, idents: Sequence[bytes], parts: Sequence[bytes]) -> bool:
        """Send a message; return False if it cannot be delivered now: the client is not connected, or reads too slowly."""
        try:
            self._sockets[channel].send_multipart(self.signer.frames(idents, parts), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True


def _bound(
    context: zmq.Context[Any], name: str, kind: int, connection: dict[str, Any]
) -> zmq.Socket[bytes]:
    made: zmq.Socket[bytes] = context.socket(kind)
    made.linger = _LINGER_MILLISECONDS
    if kind == zmq.XPUB:
        made.setsockopt(zmq.XPUB_NODROP, 1)
        made.setsockopt(zmq.XPUB_VERBOSE, 1)
        made.setsockopt(zmq.SNDHWM, _MOST_WAITING)
    else:
        made.setsockopt(zmq.ROUTER_HANDOVER, 1)
        if name != "hb":
            made.setsockopt(zmq.ROUTER_MANDATORY, 1)
    if secret := connection.get("curve_secretkey"):
        made.curve_secretkey = secret.encode()
        made.curve_publickey = connection["curve_publickey"].encode()
        made.curve_server = True
    try:
        made.bind(address_of(connection, name))
    except zmq.ZMQError:
        made.close(0)
        raise
    return made


def address_of(connection: dict[str, Any], name: str) -> str:
    """Return the address of a channel in a connection file."""
    transport, ip = connection.get("transport", "tcp"), connection.get("ip", "127.0.0.1")
    joint = ":" if transport == "tcp" else "-"
    return f"{transport}://{ip}{joint}{connection[f'{name}_port']}"
