"""Idle kernels give their GPU back: after a while without a cell their GPU memory moves to RAM, and back for the next cell."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from jupyter_server._tz import utcnow

from ..errors import GpuCkptError
from ..states import KernelState

if TYPE_CHECKING:
    import logging

    from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

    from .operations import ServerOperations

#: How often it is looked, at least and at most, in seconds.
_SHORTEST_LOOK, _LONGEST_LOOK = 0.5, 10.0


class IdleParking:
    """Parks this server's idle kernels that hold GPU memory. Never raises; a reason is logged once for each kernel."""

    def __init__(
        self,
        kernels: AsyncMappingKernelManager,
        operations: ServerOperations,
        *,
        after_seconds: float,
        log: logging.Logger,
    ) -> None:
        self._kernels, self._operations = kernels, operations
        self._after_seconds, self._log = after_seconds, log
        #: Why a kernel was not parked the last time.
        self._reasons: dict[str, str] = {}

    async def run(self) -> None:
        """Look again and again, until the task is cancelled."""
        pause = min(max(self._after_seconds / 4, _SHORTEST_LOOK), _LONGEST_LOOK)
        while not self._operations.stopping:
            await asyncio.sleep(pause)
            idle = [
                kernel_id
                for kernel_id in self._kernels.list_kernel_ids()
                if self._is_idle(kernel_id)
            ]
            if idle:
                await self._park_those_with_gpu(idle)

    async def _park_those_with_gpu(self, idle: list[str]) -> None:
        try:
            measured = await self._operations.measured()
        except GpuCkptError as error:
            self._log.debug("kernels are not measured: %s", error)
            return
        for kernel in measured:
            # Looked at again: measuring takes a moment, parking the one before it seconds.
            if kernel.kernel_id in idle and kernel.gpu_bytes and self._is_idle(kernel.kernel_id):
                await self._park(kernel.kernel_id)

    async def _park(self, kernel_id: str) -> None:
        try:
            ended = await self._operations.finish(await self._operations.park(kernel_id))
            reason = ended.error.message if ended.error else ""
        except GpuCkptError as error:
            reason = error.message
        if reason and reason != self._reasons.get(kernel_id):
            self._log.warning("Kernel %s keeps its GPU memory: %s", kernel_id, reason)
        self._reasons[kernel_id] = reason

    def _is_idle(self, kernel_id: str) -> bool:
        try:
            served = self._operations.served(kernel_id)
        except GpuCkptError:
            return False
        manager = self._kernels.get_kernel(kernel_id)
        idle_seconds = (utcnow() - getattr(manager, "last_activity", utcnow())).total_seconds()
        return (
            served.state is KernelState.RUNNING
            and served.gate_is_open
            and not served.output.awaited
            and getattr(manager, "execution_state", "") == "idle"
            and idle_seconds >= self._after_seconds
        )
