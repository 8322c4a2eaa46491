"""The choice of this machine's sources, and the task that reads them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ...wire.reclaim_records import Notice
from . import providers
from .endpoints import Endpoint
from .polling import Source, merged
from .providers import Provider

if TYPE_CHECKING:
    from .logind import Shutdowns

_BUS = Path("/run/dbus/system_bus_socket")

_log = logging.getLogger(__name__)


def has_system_bus(environ: Mapping[str, str] = os.environ, path: Path = _BUS) -> bool:
    """Return whether there is a system message bus, over which systemd's login manager announces shutdowns."""
    return bool(environ.get("DBUS_SYSTEM_BUS_ADDRESS")) or path.is_socket()


class Watch:
    """The task that reads all sources."""

    def __init__(self) -> None:
        self._endpoint: Endpoint | None = None
        #: The only source that is told when every kernel is safe.
        self._shutdowns: Shutdowns | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, take: Callable[[Notice], None]) -> None:
        """Start reading, if there are sources. `take`: called with each notice, its changes and its withdrawal."""
        if sources := self._sources():
            _log.info("notices that this machine goes: %s", ", ".join(one.name for one in sources))
            self._task = asyncio.ensure_future(_read(sources, take))

    async def close(self) -> None:
        """Stop reading the sources of notices."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._endpoint is not None:
            self._endpoint.close()

    async def acknowledge(self, notice: Notice) -> None:
        """Acknowledge a notice to its source: every kernel is safe from it."""
        if self._shutdowns is not None:
            await self._shutdowns.acknowledge(notice)

    def _sources(self) -> list[Source]:
        found: list[Source] = []
        if (provider := providers.provider()) is not Provider.NONE:
            self._endpoint = Endpoint(providers.endpoint_url())
            found += providers.sources(provider, self._endpoint)
        if has_system_bus() and find_spec("jeepney") is not None:
            from . import logind  # noqa: PLC0415 - needs an optional package

            self._shutdowns = logind.Shutdowns()
            found.append(self._shutdowns)
        return found


async def _read(sources: list[Source], take: Callable[[Notice], None]) -> None:
    async with aclosing(merged(sources)) as found:
        async for notice in found:
            take(notice)
