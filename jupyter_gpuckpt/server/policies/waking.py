"""Waking: a suspended or parked kernel is resumed for a new cell, or for an interrupt of the cell in which it was suspended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...errors import DaemonUnavailable, GpuCkptError, KernelBusy, record_of
from ...wire.protocol import RESTART_SECONDS
from ...wire.states import KernelState
from ..kernels.kernel_listener import KernelListener

if TYPE_CHECKING:
    import logging

    from ...wire.protocol import Operation
    from ..kernels.kernel_operations import ServerOperations
    from ..messages.served_kernel import ServedKernel
    from .gpu_room import GpuRoom

_PAUSE_SECONDS = 0.1
_AWAY = frozenset({KernelState.SUSPENDED, KernelState.PARKED})
_IN_A_CELL = frozenset({KernelState.SUSPENDED, KernelState.SUSPENDING})
_ON_ITS_WAY = frozenset({KernelState.SUSPENDING, KernelState.PARKING, KernelState.RESUMING})


class Waking(KernelListener):
    """A policy that resumes a kernel when a cell is sent to it."""

    def __init__(
        self, operations: ServerOperations, gpu_room: GpuRoom, log: logging.Logger
    ) -> None:
        self._operations, self._gpu_room, self._log = operations, gpu_room, log

    async def before_interrupt(self, kernel_id: str) -> None:
        """Resume a kernel that was, or is being, suspended in the middle of a cell. Raises GpuCkptError if it cannot be resumed."""
        served = self._operations.served(kernel_id)
        if served.state in _IN_A_CELL and served.output.runs_cell:
            await self._bring_back(served)

    def kernel_wanted(self, served: ServedKernel) -> None:
        """Resume a kernel for a cell; once, however many cells are sent meanwhile."""
        if not served.is_wanted and not self._operations.stopping:
            served.is_wanted = True
            self._operations.spawn(self._wake(served))

    async def _wake(self, served: ServedKernel) -> None:
        try:
            await self._bring_back(served)
            if served.state is KernelState.LOST and served.kernel and served.kernel.error:
                served.refuse_held(served.kernel.error)
        except GpuCkptError as error:
            served.refuse_held(record_of(error))
        finally:
            served.is_wanted = False

    async def _bring_back(self, served: ServedKernel) -> None:
        """Wait until the kernel is resumed, by this server or another client. Raises GpuCkptError if it cannot be resumed.

        It returns at once if the kernel is neither suspended nor about to be, or if this server stops.
        """
        while not self._operations.stopping:
            # A kernel that is being suspended is resumed right afterwards; another client's resume may fail.
            while served.is_rolling_back or served.state in _ON_ITS_WAY:
                await served.change()
            if served.state not in _AWAY or self._operations.stopping:
                return
            self._log.info("resuming kernel %s for a cell", served.kernel_id)
            try:
                await self._operations.tracked.result(await self._resume_soon(served.kernel_id))
                return
            except KernelBusy:
                # Another client resumes it, and the event has not arrived yet.
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _resume_soon(self, kernel_id: str) -> Operation:
        """Start a resume; wait for a daemon that is being replaced."""
        deadline = asyncio.get_running_loop().time() + RESTART_SECONDS
        while True:
            try:
                return await self._gpu_room.resume(kernel_id)
            except DaemonUnavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(_PAUSE_SECONDS)
