"""The reaction to lost leases: a kernel whose far session another machine has taken over runs on, or is suspended here."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from ..errors import ErrorRecord, GpuCkptError
from ..protocol import OwnerKind, SaveRequest
from ..states import ALIVE
from .kernels import Kernels, ManagedKernel
from .records import KernelRecord
from .verbs import Verbs

_log = logging.getLogger(__name__)


class LostLeases:
    """The suspender of kernels that have become branches. On the event loop's thread."""

    def __init__(self, kernels: Kernels, verbs: Verbs) -> None:
        self._kernels, self._verbs = kernels, verbs
        self._tasks: set[asyncio.Task[None]] = set()

    def note(self, kernel: ManagedKernel, error: ErrorRecord) -> None:
        """Suspend a kernel that has become a branch, if its launch asks for that (`pauses`). `error`: the message for its users."""
        if pauses(kernel.record) and kernel.state in ALIVE:
            task = asyncio.get_running_loop().create_task(self._pause(kernel, error))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pause(self, kernel: ManagedKernel, error: ErrorRecord) -> None:
        try:
            operation = self._verbs.suspend(kernel.kernel_id, SaveRequest())
            await operation.until_ended()
            if operation.error is None:
                hint = (
                    "The kernel is suspended on this machine, and nothing of it is lost."
                    f" `jupyter gpuckpt resume {kernel.kernel_id}` continues it as a branch, in a session of its own."
                )
                # A suspend clears the last error, but this one is why the kernel is suspended.
                self._kernels.update(kernel, error=msgspec.structs.replace(error, hint=hint))
                _log.warning("kernel %s is paused: %s", kernel.kernel_id, error.message)
                return
            why = operation.error.message
        except GpuCkptError as refusal:
            why = refusal.message
        _log.warning("kernel %s is not paused and runs on: %s", kernel.kernel_id, why)
        if self._kernels.find(kernel.kernel_id) is kernel and not kernel.doomed:
            self._kernels.update(kernel, error=error)


def pauses(record: KernelRecord) -> bool:
    """Return whether a kernel is suspended when another machine has taken its session over."""
    wanted = record.spec.on_lost_lease
    if wanted == "auto":
        return record.owner.kind is OwnerKind.SCRIPT
    return wanted == "pause"
