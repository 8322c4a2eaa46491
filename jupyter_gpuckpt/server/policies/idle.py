"""Idle kernels: suspended instead of being culled, and listed for the policies that park them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ...errors import GpuCkptError
from ...model import Cause
from ...states import KernelState
from ..kernels.kernel_listener import KernelListener

if TYPE_CHECKING:
    import logging

    from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

    from ..kernels.operations import ServerOperations


class IdleSuspension(KernelListener):
    """Policy that suspends the kernels that Jupyter would cull."""

    def __init__(self, operations: ServerOperations, log: logging.Logger) -> None:
        self._operations, self._log = operations, log

    async def kernel_idle(self, kernel_id: str) -> None:
        """Suspend a kernel that nobody uses; if that fails it runs on, and the culler's next round tries again."""
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
