"""Notices that this machine will go: kernels are saved, if there is time, and then suspended through their gates.

Those with the most work at stake per second of save and upload come first. The daemon reports when kernels are to be saved and when
the suspends are due. It does it itself if this server has not begun within some seconds.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ...batches.triage import UPLOAD_BYTES_PER_SECOND, measured_upload_rate, most_at_stake_first
from ...errors import GpuCkptError
from ...wire import calls
from ...wire.manifest_records import Cause
from ...wire.plurals import counted
from ...wire.reclaim_records import NoticeKind, now
from ...wire.snapshot_records import UploadState
from ...wire.states import KernelState
from ..kernels.kernel_listener import KernelListener
from .suspend_all import suspend_all

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable

    from ...wire.protocol import Kernel, Operation
    from ...wire.reclaim_records import Notice
    from ...wire.snapshot_records import Snapshot
    from ..kernels.daemon_link import DaemonLink
    from ..kernels.kernel_manager import GpuCkptKernels
    from ..kernels.kernel_operations import ServerOperations

#: How long the daemon may take to say how fast uploads are, which the order of suspends depends on.
_RATE_SECONDS = 1.0
#: How long the daemon may take to measure the kernels before saves, whose order depends on it.
_MEASURING_SECONDS = 10.0
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
        #: The saves for a machine that will go, and for one that may go; they end when the suspends begin.
        self._saves: asyncio.Task[None] | None = None
        self._saves_in_case: asyncio.Task[None] | None = None
        #: The requests for these saves, of which each returns its operation, by kernel id. Those that have ended are removed.
        self._saving: dict[str, asyncio.Future[Operation]] = {}
        self._stopped = False

    def notice_changed(self, notice: Notice) -> None:
        """Suspend all kernels for a notice that is due; save them before, and for a notice without a deadline."""
        known = self._notices.get(notice.id)
        self._notices[notice.id] = notice
        if notice.withdrawn:
            del self._notices[notice.id]
        elif known is None and notice.kind is NoticeKind.REBALANCE:
            self._save_in_case()
        elif notice.is_saving and not (known is not None and known.is_saving):
            self._save_first()
        due = [one for one in self._notices.values() if one.is_due]
        saving = [one for one in self._notices.values() if one.is_saving]
        # The daemon cancels a running save for a suspend.
        if self._saves is not None and (due or not saving):
            self._saves.cancel()
        if self._saves_in_case is not None and due:
            self._saves_in_case.cancel()
        deadline = min((one.deadline for one in due if one.deadline is not None), default=None)
        if deadline == self._deadline or self._stopped:
            return
        self._deadline = deadline
        if self._task is not None:
            self._task.cancel()  # suspends that have begun go on
        if deadline is None:
            self._resume_cells()
            if saving:
                self._save_first()
        else:
            self._task = asyncio.ensure_future(self._suspend_all(deadline))

    async def before_interrupt(self, kernel_id: str) -> None:
        """Cancel a running save: the daemon would deliver the interrupt only after it, which may take minutes."""
        await self.before_freeze(kernel_id)

    async def before_freeze(self, kernel_id: str) -> None:
        """Cancel a running save of this policy and wait for its end; what it has stored serves the next one. Never raises."""
        if (begun := self._saving.get(kernel_id)) is None:
            return
        await asyncio.wait({begun})
        if begun.cancelled() or begun.exception() is not None:
            return
        operation = begun.result()
        with suppress(GpuCkptError):
            await self._operations.cancel(operation.operation_id)
            await self._operations.finish(operation)

    async def server_stops(self) -> None:
        """Leave all kernels to the server's stop."""
        self._stopped = True
        tasks = {one for one in (self._task, self._saves, self._saves_in_case) if one is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _save_first(self) -> None:
        """Save all kernels while there is time, unless that is being done."""
        if self._stopped or self._deadline is not None:
            return
        if self._saves is None or self._saves.done() or self._saves.cancelling():
            self._log.warning("This machine will go: kernels are saved now, and run on until then.")
            self._saves = asyncio.ensure_future(self._save_all())

    def _save_in_case(self) -> None:
        """Save all kernels once, because this machine may go, unless that is being done."""
        if self._stopped or self._deadline is not None:
            return
        if self._saves_in_case is None or self._saves_in_case.done():
            self._log.warning("This machine may be taken back soon: kernels are saved, and run on.")
            self._saves_in_case = asyncio.ensure_future(self._save_all())

    async def _suspend_all(self, deadline: float) -> None:
        kernel_ids = self._link.managed(self._kernels.list_kernel_ids())
        served = self._link.served
        self._ran |= {one for one in kernel_ids if served[one].state not in _SUSPENDED}
        self._log.warning(
            "This machine goes in %.0f s: suspending %s.",
            max(0.0, deadline - now()),
            counted(len(kernel_ids), "kernel"),
        )
        due = [one for one in self._notices.values() if one.is_due]
        rate = await self._upload_rate()
        await suspend_all(
            self._operations,
            kernel_ids,
            max(0.0, deadline - now()),
            Cause.RECLAIM,
            begun=self._begun,
            order=partial(_in_order, disk_survives=all(n.disk_survives for n in due), rate=rate),
        )

    async def _save_all(self) -> None:
        for kernel_id in await self._most_at_stake_first():
            try:
                if self._operations.served(kernel_id).state is KernelState.RUNNING:
                    await self._save(kernel_id)
            except GpuCkptError as error:
                self._log.warning("Kernel %s was not saved: %s", kernel_id, error)
            except Exception:  # the others must be saved in any case
                self._log.exception("Kernel %s was not saved.", kernel_id)

    async def _save(self, kernel_id: str) -> None:
        request = self._operations.save(kernel_id, cause=Cause.AUTOSAVE)
        begun = self._saving[kernel_id] = asyncio.ensure_future(request)
        await self._operations.finish(await begun)
        # After a cancellation the save may still run.
        if self._saving.get(kernel_id) is begun:
            del self._saving[kernel_id]

    async def _most_at_stake_first(self) -> list[str]:
        """Return this server's kernels in the order in which to save them: any order if it cannot be found out."""
        managed = self._link.managed(self._kernels.list_kernel_ids())
        try:
            return await self._sorted(managed)
        except (GpuCkptError, TimeoutError) as error:
            self._log.debug("kernels are saved in any order: %r", error)
        except Exception:  # they must be saved in any case
            self._log.exception("Kernels are saved in any order.")
        return managed

    async def _sorted(self, managed: list[str]) -> list[str]:
        async with asyncio.timeout(_MEASURING_SECONDS):
            measured = await self._operations.measured()
            snapshots = await self._operations.snapshots()
        notices = [one for one in self._notices.values() if one.is_saving]
        survives = bool(notices) and all(one.disk_survives for one in notices)
        rate = await self._upload_rate()
        found = [one for one in measured if one.kernel_id in managed]
        return [
            one.kernel_id
            for one in _in_order(found, snapshots, None, disk_survives=survives, rate=rate)
        ]

    async def _upload_rate(self) -> float:
        try:
            async with asyncio.timeout(_RATE_SECONDS):
                remotes = await self._link.daemon.send(calls.uploads())
        except (GpuCkptError, TimeoutError) as error:
            self._log.debug("the rate of uploads is not known: %r", error)
            return UPLOAD_BYTES_PER_SECOND
        return measured_upload_rate(remotes)

    def _resume_cells(self) -> None:
        """Resume the kernels that were suspended in the middle of a cell: this machine stays."""
        for kernel_id in self._link.managed(self._kernels.list_kernel_ids()):
            served = self._link.served[kernel_id]
            is_suspended = served.state in _SUSPENDED and kernel_id in self._ran
            if is_suspended and served.output.runs_cell:
                served.wake()
        self._ran.clear()
        self._begun.clear()


def _in_order(
    kernels: Iterable[Kernel],
    snapshots: list[Snapshot],
    within_seconds: float | None,
    *,
    disk_survives: bool,
    rate: float,
) -> list[Kernel]:
    """Return kernels in the order in which to save them. `rate`: of uploads, in bytes per second."""
    return most_at_stake_first(
        kernels,
        snapshots,
        within_seconds,
        now=time.time(),
        is_in_remote=None if disk_survives else _is_in_remote,
        upload_bytes_per_second=rate,
    )


def _is_in_remote(snapshot: Snapshot) -> bool:
    return any(upload.state is UploadState.UPLOADED for upload in snapshot.uploads)
