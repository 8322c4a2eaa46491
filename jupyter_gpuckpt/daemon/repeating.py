"""Work of the daemon that is done again and again, whether or not it succeeds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from ..errors import GpuCkptError
from ..wire.deadlines import Deadline


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
