"""Notices that this machine will go: kernels are suspended through their gates, the smallest first, as many as there is time for.

The daemon reports when the suspends are due. It suspends a kernel itself if this server has not begun within some seconds.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...errors import GpuCkptError
from ...model import Cause
from ...plurals import counted
from ...reclaim_records import NoticeKind, now
from ...states import KernelState
from ..kernels.kernel_listener import KernelListener
from .suspend_all import suspend_all

if TYPE_CHECKING:
    import logging

    from ...reclaim_records import Notice
    from ..kernels.daemon_link import DaemonLink
    from ..kernels.kernel_manager import GpuCkptKernels
    from ..kernels.operations import ServerOperations

_SUSPENDED = frozenset({KernelState.SUSPENDING, KernelState.SUSPENDED})


class Reclaim(KernelListener):
    """A policy that suspends all kernels before this machine goes, and saves them when it may go."""

    def __init__(
        self,
        link: DaemonLink,
        kernels: GpuCkptKernels,
        operations: ServerOperations,
        log: logging.Logger,
    ) -> None:
        self._link, self._kernels, self._operations, self._log = link, kernels, operations, log
        self._notices: dict[str, Notice] = {}
        #: The earliest deadline of a notice that is due.
        self._deadline: float | None = None
        #: The kernels that ran when it was due.
        self._ran: set[str] = set()
        #: The ids of suspends that were begun for due notices. A new, nearer deadline applies to them, too.
        self._begun: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def notice_changed(self, notice: Notice) -> None:
        """Suspend all kernels for a notice that is due; save them for one without a deadline."""
        is_new = notice.id not in self._notices
        self._notices[notice.id] = notice
        if notice.withdrawn:
            del self._notices[notice.id]
        elif is_new and notice.kind is NoticeKind.REBALANCE:
            self._log.warning("This machine may be taken back soon: kernels are saved, and run on.")
            self._operations.spawn(self._save_all())
        due = [one for one in self._notices.values() if one.is_due]
        deadline = min((one.deadline for one in due if one.deadline is not None), default=None)
        if deadline == self._deadline or self._stopped:
            return
        self._deadline = deadline
        if self._task is not None:
            self._task.cancel()  # suspends that have begun go on
        if deadline is None:
            self._resume_cells()
        else:
            self._task = asyncio.ensure_future(self._suspend_all(max(0.0, deadline - now())))

    async def server_stops(self) -> None:
        """Leave all kernels to the server's stop."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _suspend_all(self, within_seconds: float) -> None:
        kernel_ids = self._managed()
        served = self._link.served
        self._ran |= {one for one in kernel_ids if served[one].state not in _SUSPENDED}
        self._log.warning(
            "This machine goes in %.0f s: suspending %s.",
            within_seconds,
            counted(len(kernel_ids), "kernel"),
        )
        await suspend_all(
            self._operations, kernel_ids, within_seconds, Cause.RECLAIM, begun=self._begun
        )

    async def _save_all(self) -> None:
        for kernel_id in self._managed():
            try:
                if self._operations.served(kernel_id).state is KernelState.RUNNING:
                    operation = await self._operations.save(kernel_id, cause=Cause.AUTOSAVE)
                    await self._operations.finish(operation)
            except GpuCkptError as error:
                self._log.warning("Kernel %s was not saved: %s", kernel_id, error)

    def _resume_cells(self) -> None:
        """Resume the kernels that were suspended in the middle of a cell: this machine stays."""
        for kernel_id in self._managed():
            served = self._link.served[kernel_id]
            is_suspended = served.state in _SUSPENDED and kernel_id in self._ran
            if is_suspended and served.output.runs_cell:
                served.wake()
        self._ran.clear()
        self._begun.clear()

    def _managed(self) -> list[str]:
        return [
            kernel_id
            for kernel_id in self._kernels.list_kernel_ids()
            if (served := self._link.served.get(kernel_id)) and served.kernel
        ]
