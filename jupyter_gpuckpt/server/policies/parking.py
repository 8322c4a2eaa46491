"""Idle parking: after a while without a cell a kernel's GPU memory moves to RAM, and back for the next cell."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...errors import GpuCkptError
from ..kernels.kernel_listener import KernelListener
from .idle import idle_kernels

if TYPE_CHECKING:
    import logging

    from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

    from ..kernels.kernel_operations import ServerOperations

#: The shortest and the longest pause between two checks, in seconds.
_SHORTEST_LOOK, _LONGEST_LOOK = 0.5, 10.0


class IdleParking(KernelListener):
    """A timer that parks idle kernels that hold GPU memory, and logs once why one is not parked."""

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
        #: The reasons why kernels were not parked the last time, by kernel id.
        self._reasons: dict[str, str] = {}

    def server_started(self) -> None:
        """Start checking for idle kernels, until the server stops."""
        self._operations.spawn(self._run())

    async def _run(self) -> None:
        pause = min(max(self._after_seconds / 4, _SHORTEST_LOOK), _LONGEST_LOOK)
        while not self._operations.stopping:
            await asyncio.sleep(pause)
            if idle := self._idle():
                await self._park_those_with_gpu(idle)

    async def _park_those_with_gpu(self, idle: list[str]) -> None:
        try:
            measured = await self._operations.measured()
        except GpuCkptError as error:
            self._log.debug("kernels are not measured: %s", error)
            return
        for kernel in measured:
            if kernel.kernel_id not in idle or not kernel.gpu_bytes or kernel.gpu_utilization:
                continue  # a user's thread may use the GPU although no cell runs
            # It is checked again, because measuring takes a moment and parking the kernel before it takes seconds.
            if kernel.kernel_id in self._idle():
                await self._park(kernel.kernel_id)

    def _idle(self) -> list[str]:
        return idle_kernels(self._kernels, self._operations, after_seconds=self._after_seconds)

    async def _park(self, kernel_id: str) -> None:
        try:
            ended = await self._operations.finish(
                await self._operations.park(kernel_id, is_automatic=True)
            )
            reason = ended.error.message if ended.error else ""
        except GpuCkptError as error:
            reason = error.message
        if reason and reason != self._reasons.get(kernel_id):
            self._log.warning("Kernel %s keeps its GPU memory: %s", kernel_id, reason)
        self._reasons[kernel_id] = reason
