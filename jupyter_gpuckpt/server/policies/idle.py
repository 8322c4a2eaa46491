"""Idle kernels: they are suspended instead of culled, after a notice to open pages, and listed for the policies that park them."""
# jupyter_server's methods carry no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ...errors import GpuCkptError
from ...model import Cause
from ...states import KernelState
from ..kernels.kernel_listener import KernelListener
from ..kernels.sessions import manager_of

if TYPE_CHECKING:
    import logging

    from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

    from ..kernels.operations import ServerOperations
    from ..messages.served_kernel import ServedKernel

#: The interval at which a kernel that will be suspended is examined: whether it is still idle.
_LOOK_SECONDS = 0.5


class IdleSuspension(KernelListener):
    """A policy that suspends the kernels that Jupyter would cull.

    `notice_seconds`: how long before that open pages are told, so that their users can keep the kernel running.
    """

    def __init__(
        self,
        kernels: AsyncMappingKernelManager,
        operations: ServerOperations,
        *,
        notice_seconds: float,
        log: logging.Logger,
    ) -> None:
        self._kernels, self._operations = kernels, operations
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
        deadline = time.time() + self._notice_seconds
        served.announce_suspend(deadline)
        changes = served.output.changes
        while time.time() < deadline and served.suspends_at is not None:
            if served.output.changes != changes or served.output.runs_cell or served.absent:
                served.announce_suspend(None)
            await asyncio.sleep(_LOOK_SECONDS)
        if served.suspends_at is not None:
            served.announce_suspend(None)
            await self._suspend(served.kernel_id)

    async def _suspend(self, kernel_id: str) -> None:
        try:
            operation = await self._operations.suspend(kernel_id, cause=Cause.IDLE)
            ended = await self._operations.finish(operation)
            if ended.error is not None:
                self._log.warning("Idle kernel %s runs on: %s", kernel_id, ended.error.message)
        except GpuCkptError as error:
            self._log.warning("Idle kernel %s runs on: %s", kernel_id, error)


def idle_kernels(
    kernels: AsyncMappingKernelManager, operations: ServerOperations, *, after_seconds: float
) -> list[str]:
    """Return the ids of kernels whose last cell ended at least `after_seconds` ago, the least recently used first."""
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
            served.state is KernelState.RUNNING
            and served.gate_is_open
            and not served.output.runs_cell
            and getattr(manager, "execution_state", "") == "idle"
            and (now - since).total_seconds() >= after_seconds
        ):
            idle.append((since, kernel_id))
    return [kernel_id for _, kernel_id in sorted(idle)]
