"""Sending through a ROUTER socket to the peer that sent a request, even if that peer has reconnected since.

ZMQ may have received a request on a connection that ended before the kernel read the request. When the peer reconnects, libzmq gives
the old connection, and with it the request, a new address: a zero byte and a number (router.cpp, ROUTER_HANDOVER). A reply to that
address reaches no peer. The proper address of a Jupyter client is its session id, which is in the header of its requests. A peer
that sets no address always has one of that form, so the form alone does not show that a connection has ended.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import zmq

#: The delimiter between the addresses and the signature of a message (jupyter_client.session.DELIM).
DELIMITER = b"<IDS|MSG>"
#: The places of the headers behind the delimiter.
HEADER, PARENT = 2, 3


def may_be_lost(address: Any) -> bool:
    """Return whether an address was made by ZMQ, so that its connection may have ended."""
    return bytes(getattr(address, "bytes", address))[:1] == b"\0"


def deliver(socket: zmq.Socket[bytes], reply: list[bytes]) -> bool:
    """Send a reply, addressed to the peer that sent the request; return False if that peer is not connected."""
    if offered(socket, lambda: socket.send_multipart(reply, zmq.NOBLOCK)):
        return True
    session = _session_of(reply) if may_be_lost(reply[0]) else b""
    return bool(session) and offered(
        socket, lambda: socket.send_multipart([session, *reply[1:]], zmq.NOBLOCK)
    )


def offered(socket: zmq.Socket[bytes], send: Callable[[], Any]) -> bool:
    """Send by a ROUTER socket; return False if the peer is not connected, in which case the socket would drop the message."""
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    try:
        send()
    except zmq.ZMQError as error:
        if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
            return False
        raise
    finally:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 0)
    return True


def other_address(ident: Any, parent: Any) -> list[bytes]:
    """Return another address of the peer that sent the request `parent` from `ident`; [] if there is none."""
    if not isinstance(ident, list) or not ident or not may_be_lost(ident[0]):
        return []
    try:
        return [str(parent["header"]["session"]).encode()]
    except (LookupError, TypeError):
        return []


def _session_of(reply: list[bytes]) -> bytes:
    try:
        parent = json.loads(reply[reply.index(DELIMITER) + PARENT])
        return str(parent["session"]).encode()
    except (ValueError, LookupError, TypeError):
        return b""
