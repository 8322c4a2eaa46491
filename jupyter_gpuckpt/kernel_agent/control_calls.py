"""Calls of functions from the control thread: in the main thread between cells, or in a thread of their own."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

#: How long a call waits for a running cell to end, and for a main thread that runs no cell but does not make the call: it gets no
#: CPU on a loaded machine, or it is in another event loop, such as that of a GUI.
_BEGIN_SECONDS, _IDLE_SECONDS = 0.2, 2.0
_PAUSE = 0.01
#: The name of the kernel's method that runs a cell; it is searched for in the main thread's stack.
_RUNS_A_CELL = "do_execute"


async def between_cells(
    main_loop: Any, function: Callable[[], Any], seconds: float, *, may_come_later: bool = False
) -> Future[Any] | None:
    """Call `function` in the main thread and wait up to `seconds` for it; return None if a running cell prevents the call.

    `may_come_later`: call it nevertheless when the cell has ended, without waiting for it.
    """
    called: Future[Any] = Future()
    main_loop.add_callback(_carry_out, called, function)
    began = time.monotonic()
    while not called.done() and (spent := time.monotonic() - began) < seconds:
        most = _BEGIN_SECONDS if _runs_a_cell() else _IDLE_SECONDS
        if spent > most and not called.running():
            if may_come_later:
                return called
            if called.cancel():
                return None
        await asyncio.sleep(_PAUSE)
    return called


def _runs_a_cell() -> bool:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code.co_name != _RUNS_A_CELL:
        frame = frame.f_back
    return frame is not None


async def beside(function: Callable[[], Any], seconds: float) -> Future[Any]:
    """Call `function` in its own thread and wait up to `seconds`: the driver blocks calls while the GPU memory is away."""
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
