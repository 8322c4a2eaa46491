"""Requests that are being answered when the server stops.

A handler that waits for a thread of AnyIO (most of Jupyter's contents API) must end before the event loop does. AnyIO ends
the thread after the task that it was made for; if the loop stops first, the process waits for that thread for ever.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tornado.web import RequestHandler

if TYPE_CHECKING:
    from tornado.httpserver import HTTPServer

#: How long they may take to end by themselves.
_PATIENCE_SECONDS = 1.0


async def end_requests(http_server: HTTPServer) -> None:
    """Take no more requests and wait for those in flight; what takes longer than a moment is cancelled."""
    await http_server.close_all_connections()
    if in_flight := _in_flight():
        _, late = await asyncio.wait(in_flight, timeout=_PATIENCE_SECONDS)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=_PATIENCE_SECONDS)


def _in_flight() -> set[asyncio.Task[Any]]:
    """The tasks in which tornado runs handlers."""
    code = RequestHandler._execute.__code__
    return {t for t in asyncio.all_tasks() if getattr(t.get_coro(), "cr_code", None) is code}
