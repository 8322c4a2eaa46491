"""Room on the GPU for a kernel that comes back: made by parking idle kernels of this server, the least recently used first.

So more notebooks are open than fit on a GPU, and each is back when its next cell runs. Kernels that want the GPU stand in one
queue; while those that have it compute, the first of it waits.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ... import calls
from ...errors import GpuCkptError, GpuFull
from .parking import idle_kernels

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncIterator

    from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

    from ...protocol import GpuRoom
    from ..kernels.daemon_link import DaemonLink
    from ..kernels.operations import ServerOperations

#: How often it is looked whether a kernel that had the GPU is idle now, in seconds.
_LOOK_SECONDS = 1.0


class RoomMaker:
    """For this server's kernels. `wait_seconds`: how long the first of the queue waits for kernels that compute."""

    def __init__(
        self,
        link: DaemonLink,
        kernels: AsyncMappingKernelManager,
        operations: ServerOperations,
        *,
        wait_seconds: float,
        log: logging.Logger,
    ) -> None:
        self._link, self._kernels, self._operations = link, kernels, operations
        self._wait_seconds, self._log = wait_seconds, log
        self._queue = asyncio.Lock()

    async def is_needed(self, kernel_id: str, snapshot_id: str) -> bool:
        """Whether the kernel will need GPU memory when it is back."""
        return (await self._room(kernel_id, snapshot_id)).needed_bytes > 0

    @asynccontextmanager
    async def made(self, kernel_id: str, snapshot_id: str) -> AsyncIterator[None]:
        """Hold the GPU for the resume inside, after there is room for it; raises GpuFull when there is none for too long."""
        served = self._operations.served(kernel_id)
        try:
            if self._queue.locked():
                served.wait_for(
                    "It waits for its turn on the GPU: another kernel comes back first."
                )
            async with self._queue:
                await self._make(kernel_id, snapshot_id)
                served.wait_for("")
                yield
        finally:
            served.wait_for("")

    async def _room(self, kernel_id: str, snapshot_id: str) -> GpuRoom:
        return await self._link.daemon.send(calls.gpu_room(kernel_id, snapshot_id))

    async def _make(self, kernel_id: str, snapshot_id: str) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_seconds
        #: Those that could not be parked, and why.
        refused: dict[str, str] = {}
        while True:
            room = await self._room(kernel_id, snapshot_id)
            if room.needed_bytes <= room.free_bytes:
                return
            chosen = await self._least_recently_used(kernel_id, refused)
            if chosen:
                refused[chosen] = await self._park(chosen)
                continue
            text = (
                f"{room.needed_bytes / 1e9:.1f} GB of GPU memory are needed,"
                f" {room.free_bytes / 1e9:.1f} GB are free, and no other kernel of this server that holds some is idle."
            )
            if loop.time() > deadline:
                raise GpuFull(
                    text,
                    hint="Wait for a computation to end, or suspend a kernel, then run the cell again.",
                    details="\n".join(why for why in refused.values() if why),
                )
            self._operations.served(kernel_id).wait_for(f"It waits for the GPU: {text}")
            await asyncio.sleep(_LOOK_SECONDS)
            # What could not be parked for want of RAM may be next time.
            refused.clear()

    async def _least_recently_used(self, kernel_id: str, refused: dict[str, str]) -> str:
        idle = idle_kernels(self._kernels, self._operations, after_seconds=0.0)
        holding = {
            kernel.kernel_id for kernel in await self._operations.measured() if kernel.gpu_bytes
        }
        return next((each for each in idle if each in holding - set(refused) - {kernel_id}), "")

    async def _park(self, kernel_id: str) -> str:
        """Why it could not be parked; empty if it was."""
        self._log.info("kernel %s is parked to make room on the GPU", kernel_id)
        try:
            ended = await self._operations.finish(await self._operations.park(kernel_id))
        except GpuCkptError as error:
            return error.message
        return ended.error.message if ended.error else ""
