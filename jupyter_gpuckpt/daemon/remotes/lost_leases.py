"""The reaction to lost leases: a kernel whose far session another machine has taken over runs on as a branch, or is suspended here."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

import msgspec

from ...errors import ErrorRecord, GpuCkptError, record_of
from ...remote.remote_list import state_folder
from ...wire.protocol import OwnerKind, SaveRequest
from ...wire.remote_records import Remote
from ...wire.states import ALIVE
from ..kernels import taken_over
from ..kernels.kernel_records import KernelRecord
from ..kernels.kernels import Kernels, ManagedKernel
from ..kernels.verbs import Verbs
from .lease_file import KernelLease, LeaseFile

_log = logging.getLogger(__name__)


class LostLeases:
    """The handler of lost leases, whoever finds them out."""

    def __init__(self, data_dir: Path, kernels: Kernels, verbs: Verbs) -> None:
        self._data_dir, self._kernels, self._verbs = data_dir, kernels, verbs
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def note(self, remote: Remote, kernel_id: str, used: KernelLease, error: GpuCkptError) -> None:
        """Make a kernel whose session another machine has taken over a branch, in a new far session, and tell the user. In any thread.

        If its launch asks for that (`pauses`), the kernel is suspended.
        """
        if not LeaseFile(state_folder(self._data_dir, remote.name)).branch(kernel_id, used):
            return
        _log.warning("remote %s: kernel %s: %s %s", remote.name, kernel_id, error, error.hint)
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._tell, kernel_id, record_of(error))

    def _tell(self, kernel_id: str, error: ErrorRecord) -> None:
        kernel = self._kernels.find(kernel_id)
        if kernel is None or kernel.doomed:
            return
        taken_over.note(self._kernels, kernel, error)
        if pauses(kernel.record) and kernel.state in ALIVE:
            task = self._loop.create_task(self._pause(kernel, error))
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
