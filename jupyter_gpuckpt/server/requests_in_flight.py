"""Requests that are being answered when the server stops.

A handler that waits for a thread of AnyIO (most of Jupyter's contents API) must end before the event loop does. AnyIO ends
the thread after the task that it was made for; if the loop stops first, the process waits for that thread for ever.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from jupyter_server.services.shutdown import ShutdownHandler
from tornado.web import RequestHandler

#: How long they may take to end by themselves.
_PATIENCE_SECONDS = 1.0
#: Of AnyIO's threads, which are waited for when the process ends.
_WORKER_NAME = "AnyIO worker thread"


async def end_requests() -> None:
    """Wait for the requests in flight; what takes longer than a moment is cancelled."""
    if asked := _in_flight():
        await asyncio.wait(asked, timeout=_PATIENCE_SECONDS)
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
    """The tasks in which tornado runs handlers, but for the one that stops the server and waits for this."""
    found = set()
    for task in asyncio.all_tasks():
        coroutine: Any = task.get_coro()
        if getattr(coroutine, "cr_code", None) is RequestHandler._execute.__code__:
            frame = coroutine.cr_frame
            if frame is not None and not isinstance(frame.f_locals["self"], ShutdownHandler):
                found.add(task)
    return found
