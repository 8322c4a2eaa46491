"""The lists of snapshots that clients see: with their uploads, and with what kernels need."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from ..wire.manifest_records import SnapshotInfo
from ..wire.snapshot_records import Snapshot
from .kernels.kernels import Kernels
from .kernels.machine import Machine
from .remotes.uploads import Uploads
from .snapshots.inventory import Inventory, needed_ids


class SnapshotLists:
    """The maker of lists of snapshots."""

    def __init__(
        self, inventory: Inventory, kernels: Kernels, machine: Machine, uploads: Uploads
    ) -> None:
        self._inventory, self._kernels = inventory, kernels
        self._machine, self._uploads = machine, uploads

    async def snapshots(self, kernel_id: str = "", name: str = "") -> list[Snapshot]:
        """List snapshots, newest first: all, or those of a kernel or of a name (a notebook's path)."""
        await self._uploads.look()
        records, infos = await self._inventory.look()
        stubs = await asyncio.to_thread(self._machine.store.stubs.all)
        needed, live = needed_ids(records, infos), self._live()
        return [
            msgspec.structs.replace(
                _snapshot(info, needed=info.snapshot_id in needed, live=info.kernel_id in live),
                uploads=self._uploads.of(info),
                remote_only=stubs[info.snapshot_id].remote if info.snapshot_id in stubs else None,
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
                kept_until=one.annotations.kept.at,
                remote_only=one.stub.remote if one.stub else None,
            )
            for one in found
            if kernel_id in {"", one.info.kernel_id} and name in {"", one.info.name}
        ]

    async def described(self, infos: Iterable[SnapshotInfo]) -> list[Snapshot]:
        """Return these snapshots as lists show them."""
        wanted = {info.snapshot_id for info in infos}
        return [one for one in await self.snapshots() if one.snapshot_id in wanted]

    def _live(self) -> set[str]:
        return {kernel.kernel_id for kernel in self._kernels}


def _snapshot(info: SnapshotInfo, *, needed: bool, live: bool) -> Snapshot:
    fields = {name: getattr(info, name) for name in SnapshotInfo.__struct_fields__}
    return Snapshot(**fields, needed=needed, kernel_live=live)
