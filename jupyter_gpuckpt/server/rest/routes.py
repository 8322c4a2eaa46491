"""All routes of the REST interface."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from . import (
    host_handler,
    kernel_handlers,
    remote_handlers,
    snapshot_handlers,
    time_travel_handlers,
    variable_handlers,
)
from .openapi import PREFIX, answers, description
from .rest_handler import GpuCkptHandler, Parts

if TYPE_CHECKING:
    from ...wire.daemon_settings import Settings
    from ..kernels.kernel_list import KernelList

ROUTES: dict[str, type[GpuCkptHandler]] = {
    **kernel_handlers.ROUTES,
    **snapshot_handlers.ROUTES,
    **remote_handlers.ROUTES,
    **time_travel_handlers.ROUTES,
    **variable_handlers.ROUTES,
    **host_handler.ROUTES,
}


class DescriptionHandler(GpuCkptHandler):
    """Handler for the description of the REST interface."""

    @answers(dict[str, Any])
    async def get(self) -> None:
        """Return this description."""
        self.reply(description(ROUTES))


ROUTES["/openapi.json"] = DescriptionHandler


def tornado_routes(
    kernels: KernelList, parts: Parts | None, settings: Settings
) -> list[tuple[str, type[GpuCkptHandler], dict[str, Any]]]:
    """Return the routes in tornado's form, with the arguments of the handlers' `initialize`."""
    arguments = {"kernels": kernels, "parts": parts, "settings": settings}
    return [(_pattern(route), handler, arguments) for route, handler in ROUTES.items()]


def _pattern(route: str) -> str:
    """Return the regular expression of a route: `{kernel_id}` becomes a named group."""
    return PREFIX + re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route)
