"""The stop of the server: its kernels are suspended and released, so that the next server can adopt them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...errors import GpuCkptError
from ...wire.manifest_records import Cause
from ...wire.plurals import counted
from ..jupyter_internals import pending_starts, requests_in_flight, stop_idle_threads
from ..kernels.kernel_listener import KernelListener
from .suspend_all import suspend_all

if TYPE_CHECKING:
    import logging

    from ..kernels.daemon_link import DaemonLink
    from ..kernels.kernel_manager import GpuCkptKernels
    from ..kernels.kernel_operations import ServerOperations
    from .shut_downs import ShutDowns

#: How long pending requests may take to end by themselves.
_PATIENCE_SECONDS = 1.0


class ServerStop(KernelListener):
    """A policy that suspends all kernels when the server stops. `within_seconds`: the limit for that; None: no limit."""

    def __init__(
        self,
        link: DaemonLink,
        kernels: GpuCkptKernels,
        operations: ServerOperations,
        shut_downs: ShutDowns,
        *,
        within_seconds: float | None,
        log: logging.Logger,
    ) -> None:
        self._link, self._kernels, self._operations = link, kernels, operations
        self._shut_downs, self._within_seconds, self._log = shut_downs, within_seconds, log

    async def server_stops(self) -> None:
        """Suspend all kernels under the engine and release them."""
        self._operations.stopping = True
        if starting := pending_starts(self._kernels):  # these cannot be suspended yet
            await asyncio.wait(starting)
        answers = await self._answers()
        if answers:
            await self._shut_downs.end_all()
        else:
            self._shut_downs.leave_all()
        kernel_ids = self._link.managed(self._kernels.list_kernel_ids())
        if kernel_ids and answers:
            self._log.info(
                "Suspending %s: the next server lists them again. Terminals end with this server.",
                counted(len(kernel_ids), "kernel"),
            )
            await suspend_all(self._operations, kernel_ids, self._within_seconds, Cause.SHUTDOWN)
        for kernel_id in kernel_ids:
            try:
                self._kernels.gpuckpt_detach(kernel_id)
            except Exception:
                self._log.exception("Kernel %s was not detached.", kernel_id)
        await self._operations.close()
        # From now on no action of this server may prevent the next one from claiming the kernels.
        if answers:
            await self._link.leave()

    async def _answers(self) -> bool:
        """Return whether the daemon can be told anything. If not, kernels run on, and the next server lists them."""
        try:
            await self._link.require_answer()
        except GpuCkptError as error:
            self._log.warning("Kernels are left as they are: %s %s", error.message, error.hint)
            return False
        return True

    async def server_stopped(self) -> None:
        """Disconnect from the daemon and end pending requests."""
        try:
            await self._link.close()
        finally:
            await _end_requests()


async def _end_requests() -> None:
    """Wait a moment for pending requests, then cancel those that are left.

    A handler that waits for a thread of AnyIO (most of Jupyter's contents API) must end before the event loop does. AnyIO ends
    the thread after the task for which it was made; if the loop stops first, the process waits for that thread for ever.
    """
    if waiting := requests_in_flight():
        await asyncio.wait(waiting, timeout=_PATIENCE_SECONDS)
    late = requests_in_flight()
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=_PATIENCE_SECONDS)
    stop_idle_threads()  # those of other tasks, too
