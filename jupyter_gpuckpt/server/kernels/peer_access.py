"""Peer access between a kernel's GPUs, switched off by its agent for as long as their memory is away (`kernel_agent/peer_access.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...states import KernelState
from . import agent
from .sessions import manager_of

if TYPE_CHECKING:
    import logging

    from jupyter_server.services.kernels.kernelmanager import (
        AsyncMappingKernelManager,
        ServerKernelManager,
    )

    from ..messages.served_kernel import ServedKernel


class PeerAccessSwitch:
    """Of this server's kernels. The gate is shut between `switch_off` and `switch_on`, or else the kernel has no GPU memory."""

    def __init__(self, kernels: AsyncMappingKernelManager, log: logging.Logger) -> None:
        self._kernels, self._log = kernels, log

    async def switch_off(self, served: ServedKernel, found: agent.Found | None = None) -> bool:
        """Whether no peer access is on in a kernel that runs, nor will be before its GPU memory is taken.

        `found`: what was found in it just now. A kernel that does not answer is not asked, nor is one without a GPU.
        """
        if not served.has_agent or served.state is not KernelState.RUNNING:
            return False
        found = found or await agent.look(self._manager(served))
        if found is None or not found.uses_gpu:
            return found is not None
        # Should this be given up in the middle.
        served.peer_access_is_off = True
        access = await agent.switch_peer_access_off(
            self._manager(served), busy=served.output.awaited
        )
        served.peer_access_is_off = access.was_switched
        return access.is_off

    async def switch_on(self, served: ServedKernel) -> None:
        """Undo that, if there is something to undo; the GPU memory is back."""
        if not served.peer_access_is_off:
            return
        served.peer_access_is_off = False
        if not await agent.switch_peer_access_on(self._manager(served)):
            self._log.warning(
                "kernel %s: peer access between its GPUs could not be switched on again; what uses it may be slower or fail",
                served.kernel_id,
            )

    async def switch_on_and(self, served: ServedKernel, release: Callable[[], None]) -> None:
        """The same, unless it was parked; then open the gate."""
        try:
            present = served.kernel_id in self._kernels  # else it was shut down meanwhile
            if present and served.state is KernelState.RUNNING:
                await self.switch_on(served)
        finally:
            release()

    def _manager(self, served: ServedKernel) -> ServerKernelManager:
        return manager_of(self._kernels, served.kernel_id)
