"""Peer access between a kernel's GPUs, switched off by its agent while their memory is away (`kernel_agent/cuda_peer_access.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...wire.states import KernelState
from . import agent_calls
from .notebook_sessions import manager_of

if TYPE_CHECKING:
    import logging

    from jupyter_server.services.kernels.kernelmanager import (
        AsyncMappingKernelManager,
        ServerKernelManager,
    )

    from ..messages.served_kernel import ServedKernel


class PeerAccessSwitch:
    """A switch of peer access: off before GPU memory is taken, then on again. In between the gate is shut or the kernel is parked."""

    def __init__(self, kernels: AsyncMappingKernelManager, log: logging.Logger) -> None:
        self._kernels, self._log = kernels, log

    async def switch_off(
        self, served: ServedKernel, found: agent_calls.AgentState | None = None
    ) -> bool:
        """Switch peer access off in a running kernel; return whether it surely stays off until its GPU memory is taken.

        `found`: the agent's report just before. A kernel that does not answer gets no request, nor does one without a GPU.
        """
        if not served.has_agent or served.state is not KernelState.RUNNING:
            return False
        found = found or await agent_calls.state(self._manager(served))
        if found is None or not found.uses_gpu:
            return found is not None
        # Set first, in case this is canceled in the middle.
        served.peer_access_is_off = True
        access = await agent_calls.switch_peer_access_off(
            self._manager(served), busy=served.output.runs_cell
        )
        served.peer_access_is_off = access.was_switched
        return access.is_off

    async def switch_on(self, served: ServedKernel) -> None:
        """Switch peer access on again where it was switched off; call this when the memory is back on the GPU."""
        if not served.peer_access_is_off:
            return
        served.peer_access_is_off = False
        if not await agent_calls.switch_peer_access_on(self._manager(served)):
            self._log.warning(
                "kernel %s: peer access between its GPUs could not be switched on again; what uses it may be slower or fail",
                served.kernel_id,
            )

    async def switch_on_and(self, served: ServedKernel, release: Callable[[], None]) -> None:
        """Switch on as `switch_on` does, unless the kernel was parked; then open the gate."""
        try:
            present = served.kernel_id in self._kernels  # else it was shut down meanwhile
            if present and served.state is KernelState.RUNNING:
                await self.switch_on(served)
        finally:
            release()

    def _manager(self, served: ServedKernel) -> ServerKernelManager:
        return manager_of(self._kernels, served.kernel_id)
