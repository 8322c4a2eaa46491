"""The snapshots of the store, and which of them kernels need."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ...errors import SnapshotInUse
from ...wire.manifest_records import SnapshotInfo
from ...wire.states import KernelState
from ..kernels.kernel_records import KernelRecord, Records
from ..kernels.kernels import Kernels
from ..kernels.machine import Machine


class Inventory:
    """An inventory of the store's snapshots and of the kernels of all places that share the store."""

    def __init__(self, kernels: Kernels, records: Records, machine: Machine) -> None:
        self._kernels, self._records, self._machine = kernels, records, machine

    async def look(self) -> tuple[list[KernelRecord], list[SnapshotInfo]]:
        """Return the records of all kernels, and all snapshots, newest first."""
        # Kernels of other places count, too, because they may share the store. This place's records in memory are newer than on
        # disk. Records are read before snapshots, so that no listed record names a snapshot that the list lacks.
        on_disk, snapshots = await asyncio.to_thread(
            lambda: (self._records.all(), self._machine.snapshots(None))
        )
        ours = {kernel.kernel_id: kernel.record for kernel in self._kernels}
        return list(({record.kernel_id: record for record in on_disk} | ours).values()), snapshots

    def suspended_here(self) -> set[str]:
        """Return the snapshots of this daemon's suspended kernels."""
        return _suspended_at(kernel.record for kernel in self._kernels)

    async def suspended_at(self) -> set[str]:
        """Return the snapshots of the suspended kernels of all places that share the store."""
        on_disk = await asyncio.to_thread(self._records.all)
        ours = {kernel.kernel_id for kernel in self._kernels}
        others = (record for record in on_disk if record.kernel_id not in ours)
        return self.suspended_here() | _suspended_at(others)

    async def require_unneeded(self, snapshot_id: str) -> None:
        """Raise SnapshotInUse if an operation reads the snapshot or a suspended kernel needs it."""
        records, infos = await self.look()
        needs = needed_ids(records, infos).get(snapshot_id)
        if needs is not None:
            raise SnapshotInUse(
                f"Kernel {needs.kernel_id} is {needs.state} and needs snapshot {snapshot_id}.",
                hint="Resume or kill that kernel first.",
            )


def _suspended_at(records: Iterable[KernelRecord]) -> set[str]:
    states = {KernelState.SUSPENDED, KernelState.RESUMING}
    return {record.snapshot_id for record in records if record.state in states}


def needed_ids(
    records: Iterable[KernelRecord], infos: Iterable[SnapshotInfo]
) -> dict[str, KernelRecord]:
    """Return the ids of snapshots without which a kernel would be lost, with the kernel's record."""
    needed: dict[str, KernelRecord] = {}
    changing: dict[str, KernelRecord] = {}
    for record in records:
        if record.state in {KernelState.SUSPENDED, KernelState.RESUMING}:
            needed[record.snapshot_id] = record  # a branch's snapshot belongs to another kernel
        if record.state in {KernelState.SUSPENDING, KernelState.RESUMING}:
            # A new snapshot may be complete but not yet in the record; a resume may read any snapshot.
            changing[record.kernel_id] = record
    for info in infos:
        if info.kernel_id in changing:
            needed[info.snapshot_id] = changing[info.kernel_id]
    return needed
