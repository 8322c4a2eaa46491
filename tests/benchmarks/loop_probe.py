"""A Jupyter server extension that measures how late the server's event loop is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from jupyter_server.base.handlers import JupyterHandler
from tornado import web

#: How often it looks, in seconds.
INTERVAL = 0.002
ROUTE = "/loop_probe"

_late: list[float] = []


class ProbeHandler(JupyterHandler):
    """What was measured since the last request, in seconds."""

    @web.authenticated
    def get(self) -> None:
        """Tell, and begin anew."""
        self.finish(json.dumps(_late))
        _late.clear()


async def _look() -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + INTERVAL
        await asyncio.sleep(INTERVAL)
        _late.append(max(0.0, loop.time() - due))


def _load_jupyter_server_extension(server: Any) -> None:
    server.web_app.add_handlers(
        ".*$", [(server.web_app.settings["base_url"] + ROUTE[1:], ProbeHandler)]
    )
    server.gpuckpt_loop_probe = server.io_loop.asyncio_loop.create_task(_look())
