"""Ports kept for a process that does not listen on them yet, or not at the moment."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Self


class HeldPorts:
    """TCP ports that nobody else gets while they are held.

    Each is bound and not listened on, with SO_REUSEADDR (man socket(7)): a socket that sets it too, as those of ZMQ, of
    asyncio and of CRIU's restore do, may bind and listen there all the same. A port picked as free (bind to port 0) is never
    one of these. A port on which somebody listens already cannot be held and is skipped; `hold` again when that may be over.
    """

    def __init__(self, ports: Iterable[int]) -> None:
        self.ports = list(ports)
        self._missing = set(self.ports)
        self._sockets: list[socket.socket] = []

    @classmethod
    def free(cls, count: int) -> Self:
        """Ports on which nobody listens, held."""
        held = cls([])
        while len(held.ports) < count:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                port = probe.getsockname()[1]
            held._missing.add(port)
            held.hold()
            # In the moment between the two somebody else may have been quicker.
            if port in held._missing:
                held._missing.remove(port)
            else:
                held.ports.append(port)
        return held

    def hold(self) -> None:
        """Hold those that are not held yet; never raises."""
        for port in sorted(self._missing):
            held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            with suppress(OSError):
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind(("", port))
                self._missing.remove(port)
                self._sockets.append(held)
                continue
            held.close()

    def release(self) -> None:
        """Let go of them for good."""
        self._missing.clear()
        while self._sockets:
            self._sockets.pop().close()


def moved_connection(
    connection: dict[str, Any], before: Iterable[int], after: Iterable[int]
) -> dict[str, Any]:
    """Jupyter's connection info with other ports: each of `before` becomes that of `after` at its place."""
    moved = dict(zip(before, after, strict=True))
    return {
        name: moved.get(value, value) if name.endswith("_port") else value
        for name, value in connection.items()
    }
