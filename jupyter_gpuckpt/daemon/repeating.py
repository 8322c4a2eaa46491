"""Work of the daemon in the background: tasks, and work that is done again and again, whether or not it succeeds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn

from ..errors import GpuCkptError
from ..wire.deadlines import Deadline


class Tasks:
    """The running tasks of one part of the daemon. On the event loop's thread."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def wait(self) -> None:
        """Wait until all tasks have ended, whatever their results."""
        if self._running:
            await asyncio.wait(self._running)

    async def cancel(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        for task in self._running:
            task.cancel()
        await self.wait()


async def repeat(
    work: Callable[[], Awaitable[object]],
    pause_seconds: float,
    log: logging.Logger,
    failure: str,
) -> NoReturn:
    """Call `work` after each pause, until this is canceled. `failure`: what is logged with an error of `work`."""
    while True:
        await asyncio.sleep(pause_seconds)
        try:
            await work()
        except GpuCkptError as error:
            log.warning("%s: %s", failure, error)
        except Exception:
            log.exception("%s", failure)


async def until(deadline: Deadline) -> None:
    """Wait until a deadline, whose clock goes on while the machine sleeps; that of the event loop does not."""
    while left := deadline.left:  # noqa: ASYNC110 - time is all that it waits for
        await asyncio.sleep(left)
