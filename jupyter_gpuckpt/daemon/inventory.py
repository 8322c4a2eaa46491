"""The snapshots of the store, and which of them kernels need."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from ..errors import SnapshotInUse
from ..model import SnapshotInfo
from ..snapshot_records import Snapshot
from ..states import KernelState
from .kernels import Kernels
from .machine import Machine
from .records import KernelRecord, Records
from .uploads import Uploads


class Inventory:
    """An inventory of the store's snapshots and of the kernels of all places that share the store."""

    def __init__(
        self, kernels: Kernels, records: Records, machine: Machine, uploads: Uploads
    ) -> None:
        self._kernels, self._records, self._machine = kernels, records, machine
        self._uploads = uploads

    async def look(self) -> tuple[list[KernelRecord], list[SnapshotInfo]]:
        """Return the records of all kernels, and all snapshots, newest first."""
        # Kernels of other places count, too, because they may share the store. This place's records in memory are newer than on
        # disk. Records are read before snapshots, so that no listed record names a snapshot that the list lacks.
        on_disk, snapshots = await asyncio.to_thread(
            lambda: (self._records.all(), self._machine.snapshots(None))
        )
        ours = {kernel.kernel_id: kernel.record for kernel in self._kernels}
        return list(({record.kernel_id: record for record in on_disk} | ours).values()), snapshots

    async def snapshots(self, kernel_id: str = "", name: str = "") -> list[Snapshot]:
        """List snapshots, newest first: all, or those of a kernel or of a name (a notebook's path)."""
        await self._uploads.look()
        records, infos = await self.look()
        stubs = await asyncio.to_thread(self._machine.store.stubs.all)
        needed, live = needed_ids(records, infos), self._live()
        return [
            msgspec.structs.replace(
                _snapshot(info, needed=info.snapshot_id in needed, live=info.kernel_id in live),
                uploads=self._uploads.of(info),
                far_only=stubs[info.snapshot_id].remote if info.snapshot_id in stubs else None,
            )
            for info in infos
            if kernel_id in {"", info.kernel_id} and name in {"", info.name}
        ]

    async def deleted(self, kernel_id: str = "", name: str = "") -> list[Snapshot]:
        """List the snapshots whose deletion can be undone."""
        found = await asyncio.to_thread(self._machine.deleted_snapshots)
        live = self._live()
        return [
            msgspec.structs.replace(
                _snapshot(one.info, needed=False, live=one.info.kernel_id in live),
                deleted_at=one.annotations.deleted_at,
                kept_until=one.annotations.kept_until,
                far_only=one.stub.remote if one.stub else None,
            )
            for one in found
            if kernel_id in {"", one.info.kernel_id} and name in {"", one.info.name}
        ]

    async def described(self, infos: Iterable[SnapshotInfo]) -> list[Snapshot]:
        """Return these snapshots as lists show them."""
        wanted = {info.snapshot_id for info in infos}
        return [one for one in await self.snapshots() if one.snapshot_id in wanted]

    async def require_unneeded(self, snapshot_id: str) -> None:
        """Raise SnapshotInUse if an operation reads the snapshot or a suspended kernel needs it."""
        records, infos = await self.look()
        needs = needed_ids(records, infos).get(snapshot_id)
        if needs is not None:
            raise SnapshotInUse(
                f"Kernel {needs.kernel_id} is {needs.state} and needs snapshot {snapshot_id}.",
                hint="Resume or kill that kernel first.",
            )

    def _live(self) -> set[str]:
        return {kernel.kernel_id for kernel in self._kernels}


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


def _snapshot(info: SnapshotInfo, *, needed: bool, live: bool) -> Snapshot:
    fields = {name: getattr(info, name) for name in SnapshotInfo.__struct_fields__}
    return Snapshot(**fields, needed=needed, kernel_live=live)
