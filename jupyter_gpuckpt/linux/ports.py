"""Ports reserved for a process that does not listen on them at the moment."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, Self


class HeldPorts:
    """TCP ports that no other program gets while they are held.

    A socket is bound to each, but does not listen, with SO_REUSEADDR (man socket(7)): sockets that set it, too, as those of ZMQ,
    asyncio and CRIU's restore do, may still bind and listen there. Linux never picks such a port as free (bind to port 0). A port on
    which another socket listens cannot be held and is skipped; call `hold` again later.
    """

    def __init__(self, ports: Iterable[int]) -> None:
        self.ports = list(ports)
        self._missing = set(self.ports)
        self._sockets: list[socket.socket] = []

    @classmethod
    def free(cls, count: int) -> Self:
        """Return `count` free ports, held."""
        held = cls([])
        while len(held.ports) < count:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                port = probe.getsockname()[1]
            held._missing.add(port)
            held.hold()
            # Another process may have taken the port between the two steps.
            if port in held._missing:
                held._missing.remove(port)
            else:
                held.ports.append(port)
        return held

    def hold(self) -> None:
        """Hold the ports that are not held yet; never raises."""
        for port in sorted(self._missing):
            try:
                held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            except OSError:  # no file can be opened
                return
            with suppress(OSError):
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind(("", port))
                self._missing.remove(port)
                self._sockets.append(held)
                continue
            held.close()

    def replace_taken(self, used: Collection[int] = ()) -> dict[int, int]:
        """Replace the ports that could not be held, and those in `used`, by free ones, which are held; return old to new."""
        replaced = {}
        for port in sorted(self._missing | {one for one in self.ports if one in used}):
            free = HeldPorts.free(1)
            self._sockets += free._sockets
            [replaced[port]] = free.ports
        for held in [one for one in self._sockets if one.getsockname()[1] in replaced]:
            self._sockets.remove(held)
            held.close()
        self._missing.clear()
        self.ports = [replaced.get(port, port) for port in self.ports]
        return replaced

    def release(self) -> None:
        """Release all ports for good."""
        self._missing.clear()
        while self._sockets:
            self._sockets.pop().close()


def moved_connection(
    connection: dict[str, Any], before: Iterable[int], after: Iterable[int]
) -> dict[str, Any]:
    """Return Jupyter's connection info with each port of `before` replaced by that of `after` at the same position."""
    moved = dict(zip(before, after, strict=True))
    return {
        name: moved.get(value, value) if name.endswith("_port") else value
        for name, value in connection.items()
    }
