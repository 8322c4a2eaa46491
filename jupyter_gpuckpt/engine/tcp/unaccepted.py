"""What clients in the tree have sent to a listener of the tree that has not accepted them yet.

Linux lets nobody read that but the program that accepts the connection, and an accepted connection cannot be put back. So a suspend
accepts them itself, as its last step before the commit, when its rehearsal has succeeded.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import msgspec

from ...wire.manifest_records import TcpConnection
from . import socket_options

logger = logging.getLogger(__name__)

#: The stream of a snapshot that holds what was sent.
STREAM = "tcp-unaccepted"
#: How long to wait for bytes that are on their way, and the interval of checks.
_PATIENCE_SECONDS, _LOOK_SECONDS = 3.0, 0.001
_PART_BYTES = 1 << 16


class Unaccepted:
    """The listeners with such connections, and the clients' sockets, by the clients' addresses; all are duplicates of the tree's."""

    def __init__(self) -> None:
        self._listeners: dict[str, socket.socket] = {}
        self._clients: dict[tuple[str, int], socket.socket] = {}
        self._accepted = ExitStack()

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def has(self, inode: str) -> bool:
        """Return whether a listener, by its inode, is known."""
        return inode in self._listeners

    def add(self, inode: str, listener: socket.socket | None, client: socket.socket) -> None:
        """Add a client of a listener, and the listener itself if it is not known."""
        if listener is not None:
            self._listeners[inode] = listener
        self._clients[_address(client.getsockname())] = client

    def take(self, connections: list[TcpConnection]) -> tuple[list[TcpConnection], bytes]:
        """Accept the connections; return all of the tree, these last and in the order of their acceptance, and what was sent.

        One of which not everything can be read is left out, and logged. The order of the others stays, because the bytes in their queues
        are stored in it; clients that wait have received nothing. The processes cannot go on with these connections afterwards.
        """
        waiting = {_address(kept.ends[0].local): kept for kept in connections if kept.waiting}
        ordered, sent = list[TcpConnection](), list[bytes]()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for listener in self._listeners.values():
            for accepted, address in self._all_of(listener):
                if (kept := waiting.pop(address, None)) is None:
                    continue
                try:
                    data = _received(accepted, self._clients.get(address), deadline)
                except OSError as error:
                    logger.warning("connection %s, not accepted yet, is lost: %s", kept.name, error)
                    continue
                sent.append(data)
                ordered.append(msgspec.structs.replace(kept, sent=len(data)))
        for address in self._clients.keys() & waiting.keys():
            logger.warning("connection %s was not found at its listener", waiting.pop(address).name)
        left = waiting.values()
        others = [kept for kept in connections if not kept.waiting or kept in left]
        return [*others, *ordered], b"".join(sent)

    def _all_of(self, listener: socket.socket) -> list[tuple[socket.socket, tuple[str, int]]]:
        """Accept all connections of a listener, and return them with the clients' addresses.

        The listener's file flags are shared with the program, so they stay as they are.
        """
        found = list[tuple[socket.socket, tuple[str, int]]]()
        while socket_options.is_readable(listener):
            with suppress(ConnectionAbortedError):  # its client has ended it
                accepted, client = listener.accept()
                socket_options.end_at_once(self._accepted.enter_context(accepted))
                found.append((accepted, _address(client)))
        return found

    def close(self) -> None:
        """Close the duplicates of listeners and what was accepted; the clients' sockets belong to the caller."""
        self._accepted.close()
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        self._clients.clear()


def _address(name: Sequence[str | int]) -> tuple[str, int]:
    """Return an address of a socket's in the form of IPv4 if it is one of IPv4."""
    host, port, *_ = name
    return str(host).removeprefix("::ffff:"), int(port)


def _received(accepted: socket.socket, client: socket.socket | None, deadline: float) -> bytes:
    """Return all that a client has sent, also what it still keeps because there was no room. Raises OSError."""
    if socket_options.has_urgent_data(accepted):
        raise OSError(errno.EPROTO, "it has urgent data")
    data = bytearray()
    while time.monotonic() < deadline:
        if socket_options.is_readable(accepted):
            part = accepted.recv(_PART_BYTES)
            if not part:
                return bytes(data)
            data += part
        elif client is None or not socket_options.unsent(client):
            return bytes(data)
        else:
            time.sleep(_LOOK_SECONDS)
    raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
