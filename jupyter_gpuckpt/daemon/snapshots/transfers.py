"""Verifications, exports and imports of whole snapshots. Each ends when its client disconnects."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

from ...wire.manifest_records import SnapshotInfo
from ...wire.snapshot_records import Verification
from ..kernels.machine import Machine
from .inflow import Inflow

if TYPE_CHECKING:
    from ...snapshots.export import Export

#: The number of concurrent transfers; more wait. They have their own threads, so that other work does not wait for them.
AT_ONCE = 2

_Result = TypeVar("_Result")


class Transfers:
    """The running verifications, exports and imports."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="transfer")
        #: For each running transfer, the function that stops it.
        self._stops: list[Callable[[], None]] = []

    @property
    def any_running(self) -> bool:
        """Return whether a client waits for a transfer."""
        return bool(self._stops)

    async def verify(self, snapshot_id: str, cancelled: threading.Event) -> Verification:
        """Compare all of a snapshot with its digests until `cancelled` is set.

        Raises SnapshotNotFound, SnapshotInRemoteOnly, OperationCancelled.
        """
        with self._stopped_by(cancelled.set):
            threads = self._machine.worker_threads

            def work() -> Verification:
                from .. import late_modules  # noqa: PLC0415 - late: see there

                store = self._machine.store
                with store.stubs.using(snapshot_id):
                    return late_modules.verify.verify(
                        store, snapshot_id, threads=threads, cancelled=cancelled
                    )

            return await self._run(work)

    async def export(self, snapshot_id: str) -> AsyncGenerator[Export | bytes]:
        """Yield an `Export`, whose length is known, then the bytes of the archive.

        Raises SnapshotNotFound, SnapshotInRemoteOnly, ObjectCorrupt.
        """
        stopped = threading.Event()
        with ExitStack() as stack, self._stopped_by(stopped.set):

            def begin() -> Export:
                from .. import late_modules  # noqa: PLC0415 - late: see there

                store = self._machine.store
                stack.enter_context(store.stubs.using(snapshot_id))
                return stack.enter_context(late_modules.export.export(store, snapshot_id))

            opened = await asyncio.to_thread(begin)
            yield opened
            pieces: Iterator[bytes] = opened.pieces()
            while not stopped.is_set() and (piece := await asyncio.to_thread(next, pieces, b"")):
                yield piece

    async def import_archive(self, inflow: Inflow) -> list[SnapshotInfo]:
        """Store the snapshots of an incoming archive. Raises ArchiveInvalid, SnapshotExists, StoreError."""

        def work() -> list[SnapshotInfo]:
            try:
                from .. import late_modules  # noqa: PLC0415 - late: see there

                return late_modules.imports.import_archive(self._machine.store, inflow.take)
            finally:
                inflow.close()

        with self._stopped_by(inflow.cut_off):
            return await self._run(work)

    async def close(self) -> None:
        """Stop all transfers, and wait for their threads."""
        for stop in self._stops:
            stop()
        await asyncio.to_thread(self._threads.shutdown)

    async def _run(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    @contextmanager
    def _stopped_by(self, stop: Callable[[], None]) -> Iterator[None]:
        self._stops.append(stop)
        try:
            yield
        finally:
            self._stops.remove(stop)
