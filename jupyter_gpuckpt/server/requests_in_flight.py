"""Requests that are being answered when the server stops.

A handler that waits for a thread of AnyIO (most of Jupyter's contents API) must end before the event loop does. AnyIO ends
the thread after the task that it was made for; if the loop stops first, the process waits for that thread for ever.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from tornado.web import RequestHandler

if TYPE_CHECKING:
    from tornado.httpserver import HTTPServer

#: How long they may take to end by themselves.
_PATIENCE_SECONDS = 1.0
#: Of AnyIO's threads, which are waited for when the process ends.
_WORKER_NAME = "AnyIO worker thread"


async def end_requests(http_server: HTTPServer) -> None:
    """Take no more requests and wait for those in flight; what takes longer than a moment is cancelled."""
    # Among them may be the one that stops the server, whose answer is awaited.
    if asked := _in_flight():
        await asyncio.wait(asked, timeout=_PATIENCE_SECONDS)
    # All at once: one after the other, each would wait for its handler while others ask on.
    closing = {asyncio.ensure_future(one.close()) for one in list(http_server._connections)}
    if closing:
        await asyncio.wait(closing, timeout=_PATIENCE_SECONDS)
    late = _in_flight()
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=_PATIENCE_SECONDS)
    # Those of tasks that are no handler's, too: a thread that is told to stop ends after what it does.
    for thread in threading.enumerate():
        if thread.name == _WORKER_NAME and hasattr(thread, "stop"):
            thread.stop()


def _in_flight() -> set[asyncio.Task[Any]]:
    """The tasks in which tornado runs handlers."""
    code = RequestHandler._execute.__code__
    return {t for t in asyncio.all_tasks() if getattr(t.get_coro(), "cr_code", None) is code}
