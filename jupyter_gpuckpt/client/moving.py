"""The steps of a move: a kernel is suspended and moved, and resumed if that fails or is canceled. Server and command line share them."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Protocol

from ..errors import GpuCkptError
from ..wire.protocol import Result
from ..wire.states import ALIVE, KernelState

_log = logging.getLogger(__name__)


class Mover(Protocol):
    """An interface for the steps of moving one kernel. Each waits for its end and raises its error.

    A step that is interrupted has been canceled and has ended when it raises.
    """

    async def state(self) -> KernelState:
        """Return the kernel's state."""

    async def suspend(self) -> None:
        """Suspend the kernel."""

    async def move(self) -> Result:
        """Upload the suspended kernel and release its session."""

    async def resume(self) -> None:
        """Resume the kernel, because it was not moved."""


async def move(mover: Mover) -> Result:
    """Move a kernel and return the result; else put it back into its former state and raise the error.

    The error's hint then names the kernel's state, and an interrupt gets a note of it (`not_moved`).
    """
    ran = await mover.state() in ALIVE
    try:
        if ran:
            await mover.suspend()
        return await mover.move()
    except BaseException as error:
        now = await _put_back(mover, ran=ran)
        if isinstance(error, GpuCkptError):
            error.hint = f"{error.hint} {now}".strip()
        else:
            error.add_note(now)
        raise


async def _put_back(mover: Mover, *, ran: bool) -> str:
    """Resume a kernel that was suspended to be moved; return a sentence about its state now. Raises nothing but interrupts."""
    now = "The kernel was not moved."
    with suppress(GpuCkptError):
        if ran and await mover.state() is KernelState.SUSPENDED:
            try:
                await mover.resume()
            except GpuCkptError as error:
                _log.warning("a kernel was not moved and is suspended: %s", error)
        is_suspended = await mover.state() is KernelState.SUSPENDED
        now = f"The kernel was not moved and {'is suspended' if is_suspended else 'runs on'} here."
    return now
