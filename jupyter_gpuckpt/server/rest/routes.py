"""All routes of the REST interface, with those about this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...client import AsyncClient
from ...wire import calls
from ...wire.answering import RecordHandler, by_pattern
from ...wire.calls import Route
from ...wire.protocol import HostReport
from ..rest_records import NoticesView, notice_view
from . import kernel_handlers, snapshot_handlers, template_handlers, time_travel_handlers
from .openapi import PREFIX, description
from .rest_handler import GpuCkptHandler, Parts, RestRoutes

if TYPE_CHECKING:
    from ...wire.daemon_settings import Settings
    from ..kernels.kernel_list import KernelList

_routes = RestRoutes()


@_routes.answers(calls.host)
async def _host(handler: GpuCkptHandler) -> HostReport:
    """Answer with the doctor's report; without a connection, a daemon is started for it."""
    if handler.connected_link is not None:
        return await handler.connected_link.daemon.send(calls.host())
    async with await AsyncClient.connect(handler.daemon_settings) as client:
        return await client.send(calls.host())


@_routes.answers(Route(NoticesView, "GET", "/notices"), _track_activity=False)
def _notices(handler: GpuCkptHandler) -> NoticesView:
    """List the standing notices; changes come as events of the schema `.../notice/v1`."""
    link = handler.connected_link
    standing = link.mirror.notices.values() if link is not None else ()
    return NoticesView(notices=[notice_view(notice) for notice in standing])


@_routes.answers(Route(dict[str, Any], "GET", "/openapi.json"))
def _description(handler: GpuCkptHandler) -> dict[str, Any]:
    """Return this description."""
    return description(ROUTES)


ROUTES: dict[str, type[RecordHandler]] = {}
for _table in (
    kernel_handlers.ROUTES,
    snapshot_handlers.ROUTES,
    time_travel_handlers.ROUTES,
    template_handlers.ROUTES,
    _routes,
):
    ROUTES |= _table.handlers(GpuCkptHandler)


def tornado_routes(
    kernels: KernelList, parts: Parts | None, settings: Settings
) -> list[tuple[str, type[RecordHandler], dict[str, Any]]]:
    """Return the routes in tornado's form, with the arguments of the handlers' `initialize`."""
    arguments = {"kernels": kernels, "parts": parts, "settings": settings}
    return [(pattern, handler, arguments) for pattern, handler in by_pattern(ROUTES, PREFIX)]
