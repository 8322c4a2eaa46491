"""What clients in the tree have sent to a listener of the tree that has not accepted them yet.

Linux lets nobody read that but the program that accepts the connection, and an accepted connection cannot be put back. So a suspend
accepts them itself, as its last step before the commit, when its rehearsal has succeeded.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack

import msgspec

from ...manifest_records import TcpConnection
from . import options

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

        The processes cannot go on with these connections afterwards.
        """
        waiting = {_address(kept.ends[0].local): kept for kept in connections if kept.waiting}
        ordered, sent = list[TcpConnection](), list[bytes]()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for listener in self._listeners.values():
            for accepted in self._all_of(listener):
                address = _address(accepted.getpeername())
                if (kept := waiting.pop(address, None)) is not None:
                    sent.append(_received(accepted, self._clients.get(address), deadline))
                    ordered.append(msgspec.structs.replace(kept, sent=len(sent[-1])))
        taken = {_address(kept.ends[0].local) for kept in ordered}
        others = [
            kept
            for kept in connections
            if not kept.waiting or _address(kept.ends[0].local) not in taken
        ]
        return [*others, *ordered], b"".join(sent)

    def _all_of(self, listener: socket.socket) -> list[socket.socket]:
        """Accept all connections of a listener. Its file flags are shared with the program, so they stay as they are."""
        found = list[socket.socket]()
        while options.is_readable(listener):
            accepted = self._accepted.enter_context(listener.accept()[0])
            options.end_at_once(accepted)
            found.append(accepted)
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
    """Return all that a client has sent, also what it still keeps because there was no room."""
    data = bytearray()
    while time.monotonic() < deadline:
        if options.is_readable(accepted):
            part = accepted.recv(_PART_BYTES)
            if not part:
                break
            data += part
        elif client is None or not options.unsent(client):
            break
        else:
            time.sleep(_LOOK_SECONDS)
    return bytes(data)
