"""The choice of this machine's sources, and the task that reads them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from ...wire.daemon_settings import Settings
from ...wire.reclaim_records import Notice
from . import providers
from .administrator import CommandNotices, UrlNotices
from .endpoints import Endpoint
from .polling import Source, merged
from .providers import Provider
from .shared import SharedSource, directory_for

_BUS = Path("/run/dbus/system_bus_socket")

_log = logging.getLogger(__name__)


def has_system_bus(environ: Mapping[str, str] = os.environ, path: Path = _BUS) -> bool:
    """Return whether there is a system message bus, over which systemd's login manager announces shutdowns."""
    return bool(environ.get("DBUS_SYSTEM_BUS_ADDRESS")) or path.is_socket()


def is_usable(url: str) -> bool:
    """Return whether notices can be read from a URL; log why not. The log never shows the URL, because it may hold a secret."""
    try:
        parts = urlsplit(url)
        is_sound = parts.scheme in {"http", "https"} and bool(parts.hostname)
        is_sound = is_sound and (parts.port is None or parts.port > 0)
    except ValueError:
        is_sound = False
    if not is_sound:
        _log.warning("the URL for notices that this machine goes is not http(s)://HOST[:PORT]/PATH")
        return False
    if parts.username is not None:
        _log.warning("the URL for notices that this machine goes holds credentials: it is not used")
        return False
    return True


class Watch:
    """The task that reads all sources."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._endpoints: list[Endpoint] = []
        self._sources: list[Source] = []
        self._task: asyncio.Task[None] | None = None

    def start(self, take: Callable[[Notice], None]) -> None:
        """Start reading, if there are sources. `take`: called with each notice, its changes and its withdrawal."""
        self._sources = self._configured()
        if self._sources:
            _log.info(
                "notices that this machine goes: %s", ", ".join(one.name for one in self._sources)
            )
            self._task = asyncio.ensure_future(self._run(take))

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        for endpoint in self._endpoints:
            endpoint.close()

    async def acknowledge(self, notice: Notice) -> None:
        """Acknowledge a notice to its source: every kernel is safe from it."""
        for source in self._sources:
            await source.acknowledge(notice)

    async def _run(self, take: Callable[[Notice], None]) -> None:
        async with aclosing(merged(self._sources)) as found:
            async for notice in found:
                take(notice)

    def _configured(self) -> list[Source]:
        settings = self._settings
        if not settings.reclaim_notices:
            return []
        found = self._of_provider(providers.provider())
        if settings.reclaim_url and is_usable(settings.reclaim_url):
            found.append(UrlNotices(self._endpoint(settings.reclaim_url)))
        if settings.reclaim_command:
            found.append(CommandNotices(settings.reclaim_command))
        if has_system_bus() and find_spec("jeepney") is not None:
            from . import logind  # noqa: PLC0415 - needs an optional package

            found.append(logind.Shutdowns())
        return found

    def _of_provider(self, provider: Provider) -> list[Source]:
        if provider is Provider.NONE:
            return []
        url = providers.endpoint_url()
        approves = self._settings.reclaim_approve
        found = providers.sources(provider, self._endpoint(url), approves=approves)
        directory = directory_for(self._settings.data)
        return found if directory is None else [SharedSource(found, directory, f"{provider} {url}")]

    def _endpoint(self, url: str) -> Endpoint:
        self._endpoints.append(Endpoint(url))
        return self._endpoints[-1]
