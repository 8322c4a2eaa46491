"""Removing snapshots: one that a user names, or those that retention does not keep (`store/retention.py` decides).

Retention runs after every save and suspend that brings a policy, when nothing is in flight: reading all manifests must not
delay a suspend that is racing against the end of the machine. It never fails an operation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from ..errors import GpuCkptError, SnapshotInUse
from ..model import RetentionPolicy, SnapshotInfo
from ..protocol import OperationState, PruneReport, Verdict
from ..states import KernelState
from ..store import retention
from .jobs import Job
from .kernels import Kernels
from .machine import Machine
from .operations import Operations, RunningOperation
from .records import KernelRecord, Records

#: Kernels in these states live in a snapshot.
_NEED_SNAPSHOT = {KernelState.SUSPENDED, KernelState.RESUMING}

_log = logging.getLogger(__name__)


class Removal:
    """Of this daemon's store."""

    def __init__(
        self,
        kernels: Kernels,
        records: Records,
        machine: Machine,
        operations: Operations,
    ) -> None:
        self._kernels, self._records, self._machine = kernels, records, machine
        self._operations = operations
        self._wanted: RetentionPolicy | None = None
        self._task: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def delete(self, snapshot_id: str) -> None:
        """Remove a snapshot; raises SnapshotInUse when an operation reads it or a suspended kernel needs it."""
        records, snapshots = await self._look()
        of_kernel = {info.snapshot_id: info.kernel_id for info in snapshots}.get(snapshot_id)
        for record in records:
            needed = record.state in _NEED_SNAPSHOT and record.snapshot_id == snapshot_id
            # It may be the one that is being made: complete, but not yet known as the kernel's.
            made = record.state is KernelState.SUSPENDING and record.kernel_id == of_kernel
            if needed or made:
                raise SnapshotInUse(
                    f"Kernel {record.kernel_id} is {record.state} and needs snapshot {snapshot_id}.",
                    hint="Resume or kill that kernel first.",
                )
        await asyncio.to_thread(lambda: self._machine.store.delete(snapshot_id))

    async def prune(self, policy: RetentionPolicy, *, dry_run: bool = False) -> PruneReport:
        """Remove what `policy` does not keep, or only say what that is. Raises StoreError."""
        async with self._one_at_a_time:
            records, snapshots = await self._look()
            return await asyncio.to_thread(self._prune, policy, records, snapshots, dry_run)

    def after(self, job: Job, operation: RunningOperation) -> None:
        """An operation is over: if snapshots were made, apply retention as soon as nothing is in flight."""
        if operation.state is OperationState.SUCCEEDED:
            self._wanted = job.retention or self._wanted
        idle = self._task is None or self._task.done()
        if self._wanted is not None and idle and not self._operations.any_running:
            self._task = asyncio.get_running_loop().create_task(self._apply())

    async def close(self) -> None:
        """Wait for what is being removed."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _apply(self) -> None:
        while self._wanted is not None:
            policy, self._wanted = self._wanted, None
            if policy.removes_nothing:
                continue
            try:
                report = await self.prune(policy)
            except GpuCkptError as error:
                _log.warning("no snapshots were removed: %s", error)
            except Exception:
                _log.exception("no snapshots were removed")
            else:
                gone = [verdict for verdict in report.verdicts if verdict.removed]
                if gone:
                    names = ", ".join(verdict.snapshot.snapshot_id for verdict in gone)
                    freed = report.freed_bytes / 1e6
                    _log.info("retention removed %s; %.1f MB became free", names, freed)

    async def _look(self) -> tuple[list[KernelRecord], list[SnapshotInfo]]:
        """The records of all kernels, and all snapshots."""
        # Also kernels of other places: the store may be shared with them. Ours are in memory before they are on disk. Records
        # before snapshots: a kernel's latest is never older than what its record says.
        on_disk, snapshots = await asyncio.to_thread(
            lambda: (self._records.all(), self._machine.snapshots(None))
        )
        ours = {kernel.kernel_id: kernel.record for kernel in self._kernels}
        return list(({record.kernel_id: record for record in on_disk} | ours).values()), snapshots

    def _prune(
        self,
        policy: RetentionPolicy,
        records: Iterable[KernelRecord],
        snapshots: list[SnapshotInfo],
        dry_run: bool,
    ) -> PruneReport:
        # What a record names is what its kernel resumes from; a resume may have been asked for from any.
        resuming = {r.kernel_id for r in records if r.state is KernelState.RESUMING}
        needed = {record.snapshot_id for record in records}
        needed |= {info.snapshot_id for info in snapshots if info.kernel_id in resuming}
        store = self._machine.store
        verdicts: list[Verdict] = retention.judge(
            snapshots,
            policy,
            needed=needed,
            living={record.kernel_id for record in records},
            scales=store.weights(),
        )
        gone = [verdict.snapshot.snapshot_id for verdict in verdicts if verdict.removed]
        freed = store.delete(*gone) if gone and not dry_run else 0
        return PruneReport(verdicts, freed)
