"""A cache of the local store's list of snapshots, read again only when it may have changed."""

from __future__ import annotations

import asyncio

from ...store.stub_files import Stub
from ...wire.manifest_records import SnapshotInfo
from ..kernels.machine import Machine


class LocalSnapshots:
    """A cache of the local store's snapshots. Used on the event loop's thread; `found` may be read in any."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._one_at_a_time = asyncio.Lock()
        self.is_stale = True
        #: Snapshots by id, newest first. The dictionary is never changed, only replaced.
        self.found: dict[str, SnapshotInfo] = {}
        #: Stubs by snapshot id: only a remote has their chunks. The dictionary is changed in place.
        self.stubs: dict[str, Stub] = {}

    async def refresh(self) -> None:
        """Read the list of snapshots if it may have changed. Raises StoreError."""
        async with self._one_at_a_time:
            if not self.is_stale:
                return
            self.is_stale = False
            try:
                found = await asyncio.to_thread(self._machine.snapshots, None)
                stubs = await asyncio.to_thread(self._machine.store.stubs.all)
            except BaseException:
                self.is_stale = True
                raise
            self.found = {info.snapshot_id: info for info in found}
            self.stubs.clear()
            self.stubs.update(stubs)
