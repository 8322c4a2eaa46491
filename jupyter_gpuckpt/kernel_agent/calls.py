"""Calling functions from the control thread: in the main thread between cells, or in a thread of their own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

#: How long a cell may keep a call from beginning.
_BEGIN_SECONDS = 0.2
_PAUSE = 0.01


async def between_cells(
    main_loop: Any, function: Callable[[], Any], seconds: float, *, may_come_later: bool = False
) -> Future[Any] | None:
    """Call it in the main thread; None if a cell keeps it from beginning. Returns when it is done, or after `seconds`.

    `may_come_later`: it is called when the cell has ended, and nobody waits for that.
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
    """Call it in a thread of its own, for it may wait for long: the driver holds the calls of a process whose GPU memory is away."""
    called: Future[Any] = Future()
    threading.Thread(target=_carry_out, args=(called, function), daemon=True).start()
    deadline = time.monotonic() + seconds
    while not called.done() and time.monotonic() < deadline:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(_PAUSE)
    return called


def result_of(called: Future[Any]) -> Any:
    """What it returned; None if it has not ended, or with an error."""
    return called.result() if called.done() and not called.exception() else None


def _carry_out(called: Future[Any], function: Callable[[], Any]) -> None:
    if called.set_running_or_notify_cancel():
        try:
            called.set_result(function())
        except BaseException as error:
            called.set_exception(error)
            raise
