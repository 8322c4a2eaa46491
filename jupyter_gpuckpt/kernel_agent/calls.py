"""Calls of functions from the control thread: in the main thread between cells, or in a thread of their own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

#: How long a call waits for a running cell to end.
_BEGIN_SECONDS = 0.2
_PAUSE = 0.01


async def between_cells(
    main_loop: Any, function: Callable[[], Any], seconds: float, *, may_come_later: bool = False
) -> Future[Any] | None:
    """Call `function` in the main thread; return when it is done, or after `seconds`, or None if a running cell prevents the call.

    `may_come_later`: call it nevertheless when the cell has ended, without waiting for it.
    """
    called: Future[Any] = Future()
    main_loop.add_callback(_carry_out, called, function)
    began = time.monotonic()
    while not called.done() and (spent := time.monotonic() - began) < seconds:
        if spent > _BEGIN_SECONDS and not called.running():
            if may_come_later:
                return called
            if called.cancel():
                return None
        await asyncio.sleep(_PAUSE)
    return called


async def beside(function: Callable[[], Any], seconds: float) -> Future[Any]:
    """Call `function` in a thread of its own: the driver holds calls of a process whose GPU memory is away, so it may take long."""
    called: Future[Any] = Future()
    threading.Thread(target=_carry_out, args=(called, function), daemon=True).start()
    deadline = time.monotonic() + seconds
    while not called.done() and time.monotonic() < deadline:  # noqa: ASYNC110 - it may never end
        await asyncio.sleep(_PAUSE)
    return called


def result_of(called: Future[Any]) -> Any:
    """Return the function's result; None if it has not ended, or raised an error."""
    return called.result() if called.done() and not called.exception() else None


def _carry_out(called: Future[Any], function: Callable[[], Any]) -> None:
    if called.set_running_or_notify_cancel():
        try:
            called.set_result(function())
        except BaseException as error:
            called.set_exception(error)
            raise
