"""The owners of this user's kernels that are there now: Jupyter servers, and the daemon for kernels without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from ..client import AsyncClient
from ..errors import GpuCkptError
from ..wire import calls
from .backing import Backing
from .daemon_backing import DaemonBacking
from .rest_backing import RestBacking
from .running_servers import FoundServer


class Backings:
    """The owners, each connected at its first use. `servers`: finds the servers. `with_daemon`: also kernels that no server has."""

    def __init__(
        self, servers: Callable[[], Iterable[FoundServer]], *, with_daemon: bool = True
    ) -> None:
        self._servers, self._with_daemon = servers, with_daemon
        self._connected: dict[FoundServer, RestBacking] = {}
        self._daemon: DaemonBacking | None = None
        self._lock = asyncio.Lock()

    async def find(self) -> list[Backing]:
        """Return the owners, servers first: a kernel that a server lists is reached through that server."""
        async with self._lock:
            present = list(self._servers())
            for server in self._connected.keys() - set(present):
                await self._connected.pop(server).close()
            for server in present:
                self._connected.setdefault(server, RestBacking(server))
            if self._with_daemon and self._daemon is None:
                self._daemon = await DaemonBacking.connect()
        return self._all()

    async def close(self) -> None:
        """Close the connections; kernels go on."""
        for backing in self._all():
            await backing.close()

    def _all(self) -> list[Backing]:
        servers: list[Backing] = list(self._connected.values())
        return servers + ([self._daemon] if self._daemon else [])


async def free_bytes() -> int | None:
    """Return the memory of this machine, or of a limit, that is free; None if the daemon cannot be asked."""
    with suppress(GpuCkptError):
        async with await AsyncClient.connect(start=False) as client:
            return min((one.free_bytes for one in await client.send(calls.memory())), default=None)
    return None
