"""Kernels come back, or get their GPU back, because somebody runs a cell."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...errors import DaemonUnavailable, GpuCkptError, record_of
from ...protocol import RESTART_SECONDS
from ...states import KernelState

if TYPE_CHECKING:
    import logging

    from ...protocol import Operation
    from ..kernels.operations import ServerOperations
    from ..messages.served_kernel import ServedKernel

_PAUSE_SECONDS = 0.1
_ON_ITS_WAY = frozenset({KernelState.SUSPENDING, KernelState.PARKING})


class Waking:
    """What is wanted of this server's suspended and parked kernels."""

    def __init__(self, operations: ServerOperations, log: logging.Logger) -> None:
        self._operations, self._log = operations, log
        #: Kernels that are just being brought back for somebody.
        self._kernel_ids: set[str] = set()

    def wake(self, served: ServedKernel) -> None:
        """Bring a kernel back because somebody runs a cell; once, however many cells are sent meanwhile."""
        if served.kernel_id not in self._kernel_ids and not self._operations.stopping:
            self._kernel_ids.add(served.kernel_id)
            self._operations.spawn(self._wake(served))

    async def _wake(self, served: ServedKernel) -> None:
        try:
            # One that is just being suspended is to be back right afterwards.
            while served.is_rolling_back or served.state in _ON_ITS_WAY:
                await served.change()
            if served.state is KernelState.LOST and served.kernel and served.kernel.error:
                served.refuse_held(served.kernel.error)
            if self._operations.stopping:
                return
            if served.state not in {KernelState.SUSPENDED, KernelState.PARKED}:
                return
            self._log.info("kernel %s is wanted: resuming it", served.kernel_id)
            ended = await self._operations.finish(await self._resume_soon(served.kernel_id))
            if ended.error is not None:
                served.refuse_held(ended.error)
        except GpuCkptError as error:
            served.refuse_held(record_of(error))
        finally:
            self._kernel_ids.discard(served.kernel_id)

    async def _resume_soon(self, kernel_id: str) -> Operation:
        """Begin a resume, after a daemon that is just being replaced is there again."""
        deadline = asyncio.get_running_loop().time() + RESTART_SECONDS
        while True:
            try:
                return await self._operations.resume(kernel_id)
            except DaemonUnavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(_PAUSE_SECONDS)
