"""The choice of this machine's sources, and the task that reads them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ...wire.reclaim_records import Notice
from ..repeating import Tasks
from . import aws, azure, gcp
from .endpoints import Endpoint
from .polling import Source, merged

_DMI = Path("/sys/class/dmi/id")
#: All metadata services have this address; no name has to be resolved.
_METADATA = "http://169.254.169.254"
#: The tag of the chassis that all of Azure's machines have.
_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"


if TYPE_CHECKING:
    from .logind import Shutdowns

_BUS = Path("/run/dbus/system_bus_socket")

#: The sources of each provider.
_SOURCES: dict[str, Callable[[Endpoint], list[Source]]] = {
    "aws": aws.sources,
    "gcp": gcp.sources,
    "azure": azure.sources,
    "none": lambda endpoint: [],
}

_log = logging.getLogger(__name__)


def provider(environ: Mapping[str, str] = os.environ, dmi: Path = _DMI) -> str:
    """Return the provider of this machine (a key of `_SOURCES`), or the one that `$JUPYTER_GPUCKPT_RECLAIM_PROVIDER` names.

    Its firmware names it; no request is sent to find it out.
    """
    named = environ.get("JUPYTER_GPUCKPT_RECLAIM_PROVIDER", "")
    if named in _SOURCES:
        return named
    if named:
        known = ", ".join(_SOURCES)
        _log.warning("JUPYTER_GPUCKPT_RECLAIM_PROVIDER is %r; these are known: %s", named, known)
    vendor, board = _read_text(dmi / "sys_vendor"), _read_text(dmi / "board_vendor")
    if "Amazon EC2" in {vendor, board}:
        return "aws"
    if _read_text(dmi / "product_name") == "Google Compute Engine":
        return "gcp"
    if _read_text(dmi / "chassis_asset_tag") == _AZURE_TAG:
        return "azure"
    return "none"


def endpoint_url(environ: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the metadata service."""
    return environ.get("JUPYTER_GPUCKPT_RECLAIM_ENDPOINT", "") or _METADATA


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[:200].strip()
    except OSError:
        return ""


def has_system_bus(environ: Mapping[str, str] = os.environ, path: Path = _BUS) -> bool:
    """Return whether there is a system message bus, over which systemd's login manager announces shutdowns."""
    return bool(environ.get("DBUS_SYSTEM_BUS_ADDRESS")) or path.is_socket()


class Watch:
    """The task that reads all sources."""

    def __init__(self) -> None:
        self._endpoint: Endpoint | None = None
        #: The only source that is told when every kernel is safe.
        self._shutdowns: Shutdowns | None = None
        self._tasks = Tasks()

    def start(self, take: Callable[[Notice], None]) -> None:
        """Start reading, if there are sources. `take`: called with each notice, its changes and its withdrawal."""
        if sources := self._sources():
            _log.info("notices that this machine goes: %s", ", ".join(one.name for one in sources))
            self._tasks.start(_read(sources, take))

    async def close(self) -> None:
        """Stop reading the sources of notices."""
        await self._tasks.cancel()
        if self._endpoint is not None:
            self._endpoint.close()

    async def acknowledge(self, notice: Notice) -> None:
        """Acknowledge a notice to its source: every kernel is safe from it."""
        if self._shutdowns is not None:
            await self._shutdowns.acknowledge(notice)

    def _sources(self) -> list[Source]:
        found: list[Source] = []
        if (named := provider()) != "none":
            self._endpoint = Endpoint(endpoint_url())
            found += _SOURCES[named](self._endpoint)
        if has_system_bus() and find_spec("jeepney") is not None:
            from . import logind  # noqa: PLC0415 - needs an optional package

            self._shutdowns = logind.Shutdowns()
            found.append(self._shutdowns)
        return found


async def _read(sources: list[Source], take: Callable[[Notice], None]) -> None:
    async with aclosing(merged(sources)) as found:
        async for notice in found:
            take(notice)
