"""Suspends of idle kernels where Jupyter would cull them, after a notice to open pages, and the list of kernels that are idle."""
# jupyter_server's methods carry no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ...errors import GpuCkptError, KernelBusy
from ...wire.manifest_records import Cause
from ...wire.states import KernelState
from ..kernels.kernel_listener import KernelListener
from ..kernels.notebook_sessions import manager_of

if TYPE_CHECKING:
    import logging

    from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

    from ..kernels.kernel_operations import ServerOperations
    from ..messages.served_kernel import ServedKernel

#: The interval at which a kernel that will be suspended is examined: whether it is still idle.
_LOOK_SECONDS = 0.5


@dataclass(eq=False)
class _Suspend:
    """A suspend of an idle kernel. `operation_id`: empty until the daemon has begun it."""

    kernel_id: str
    operation_id: str = ""
    is_unwanted: bool = False


class IdleSuspends(KernelListener):
    """The suspends of idle kernels that no user requested: a cell that is sent meanwhile cancels them."""

    def __init__(self, operations: ServerOperations) -> None:
        self._operations = operations
        #: A kernel may have several, each of another policy.
        self._running: set[_Suspend] = set()

    async def suspend(self, kernel_id: str, cause: Cause, *, busy_too: bool = False) -> str:
        """Suspend a kernel; return the reason why it runs on, empty if it is suspended. `busy_too`: even while a cell runs."""
        suspend = _Suspend(kernel_id)
        self._running.add(suspend)

        def check() -> None:
            runs_cell = self._operations.served(kernel_id).output.runs_cell
            if suspend.is_unwanted or (runs_cell and not busy_too):
                raise KernelBusy("A cell was sent to it.")

        try:
            operation = await self._operations.suspend(kernel_id, cause=cause, check=check)
            suspend.operation_id = operation.operation_id
            if suspend.is_unwanted:
                await self._operations.cancel(operation.operation_id)
            ended = await self._operations.finish(operation)
        except GpuCkptError as error:
            return str(error)
        finally:
            self._running.discard(suspend)
        return ended.error.message if ended.error is not None else ""

    def kernel_wanted(self, served: ServedKernel) -> None:
        """Cancel the suspends of a kernel to which a cell was sent: it would be resumed right afterwards."""
        for suspend in self._running:
            if suspend.kernel_id == served.kernel_id and not suspend.is_unwanted:
                suspend.is_unwanted = True
                if suspend.operation_id:
                    self._operations.spawn(self._cancel(suspend.operation_id))

    async def _cancel(self, operation_id: str) -> None:
        with suppress(GpuCkptError):  # the kernel is resumed then
            await self._operations.cancel(operation_id)


class IdleSuspension(KernelListener):
    """A policy that suspends the kernels that Jupyter would cull.

    `notice_seconds`: how long before that open pages are told, so that their users can keep the kernel running.
    """

    def __init__(
        self,
        kernels: AsyncMappingKernelManager,
        operations: ServerOperations,
        suspends: IdleSuspends,
        *,
        notice_seconds: float,
        log: logging.Logger,
    ) -> None:
        self._kernels, self._operations, self._suspends = kernels, operations, suspends
        self._notice_seconds, self._log = notice_seconds, log

    async def kernel_idle(self, kernel_id: str) -> None:
        """Suspend an idle kernel, or give notice of it; if that fails it runs on, and the culler's next round tries again."""
        try:
            served = self._operations.served(kernel_id)
        except GpuCkptError:
            return
        if not (self._notice_seconds and served.connections):
            await self._suspend(kernel_id)
        elif served.suspends_at is None:
            self._operations.spawn(self._suspend_later(served))

    def keep_running(self, kernel_id: str) -> None:
        """Withdraw the notice and count the kernel's idle time from now on. Raises KernelNotFound."""
        self._operations.served(kernel_id).announce_suspend(None)
        manager_of(self._kernels, kernel_id).last_activity = datetime.now(UTC)

    async def _suspend_later(self, served: ServedKernel) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._notice_seconds
        served.announce_suspend(time.time() + self._notice_seconds)
        changes = served.output.changes
        while loop.time() < deadline and served.suspends_at is not None:
            if served.output.changes != changes or served.output.runs_cell or served.absent:
                served.announce_suspend(None)
            await asyncio.sleep(_LOOK_SECONDS)
        if served.suspends_at is not None:
            served.announce_suspend(None)
            await self._suspend(served.kernel_id)

    async def _suspend(self, kernel_id: str) -> None:
        # Jupyter's own setting says whether the culler chooses kernels that run a cell, too.
        busy_too = bool(getattr(self._kernels, "cull_busy", False))
        if why := await self._suspends.suspend(kernel_id, Cause.IDLE, busy_too=busy_too):
            self._log.warning("Idle kernel %s runs on: %s", kernel_id, why)


def idle_kernels(
    kernels: AsyncMappingKernelManager,
    operations: ServerOperations,
    *,
    after_seconds: float,
    parked_too: bool = False,
) -> list[str]:
    """Return the ids of kernels whose last cell ended at least `after_seconds` ago, the least recently used first.

    `parked_too`: also kernels whose GPU memory is in RAM.
    """
    idle = []
    now = datetime.now(UTC)
    for kernel_id in kernels.list_kernel_ids():
        try:
            served = operations.served(kernel_id)
        except GpuCkptError:
            continue
        manager = kernels.get_kernel(kernel_id)
        since = getattr(manager, "last_activity", now)
        if (
            (_is_open(served) or (parked_too and served.state is KernelState.PARKED))
            and not (served.output.runs_cell or served.is_wanted or served.waits)
            and getattr(manager, "execution_state", "") == "idle"
            and is_long_ago((now - since).total_seconds(), after_seconds)
        ):
            idle.append((since, kernel_id))
    return [kernel_id for _, kernel_id in sorted(idle)]


def is_long_ago(seconds_ago: float, after_seconds: float) -> bool:
    """Return whether something happened at least `after_seconds` ago by the time of day, `seconds_ago` by what was noted then.

    What lies further in the future was noted before the clock was set back, so it counts as long ago: a kernel that is suspended too
    early resumes at its next cell, but one that is not suspended while memory is short may be lost.
    """
    return not -after_seconds <= seconds_ago < after_seconds


def _is_open(served: ServedKernel) -> bool:
    return served.state is KernelState.RUNNING and served.gate_is_open
