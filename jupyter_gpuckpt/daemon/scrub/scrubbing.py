"""The scrub: all packs of the store are read once in some days, and what is damaged is told and repaired.

Covers: the schedule, the process that reads, telling and repairing. Does not cover: which packs are due, and what is recorded of them
(store/pack_checks.py). The progress is in the store's catalog, so the next daemon continues.

Damaged chunks are stored again by the next save that has them, or fetched here from a remote that has the snapshot.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import GpuCkptError, StoreUnavailable, record_of
from ...host import commands, own_programs
from ...images.worker_messages import receive, send
from ...store.pack_reading import PackReading
from ...wire.manifest_records import SnapshotInfo
from ...wire.plurals import counted
from ...wire.snapshot_records import SnapshotChange, SnapshotChangeKind, UploadState
from ..kernels.machine import Machine
from ..remotes import remote_copies
from ..remotes.pauses import Pauses
from ..remotes.uploads import Uploads
from ..repeating import Tasks, repeat
from .pack_reader import Next, PackRead, PieceRead

if TYPE_CHECKING:
    from ...store.local import LocalStore

#: How long a pack counts as intact after it was written or read.
EVERY_SECONDS = 7 * 86400.0
_LOOK_SECONDS = 60.0
#: The polling interval while work runs for which a user waits.
_BUSY_SECONDS = 0.5

_log = logging.getLogger(__name__)


class Scrubbing:
    """The scrub of this daemon's store. `is_busy`: whether work runs for which a user waits."""

    def __init__(
        self,
        data_dir: Path,
        machine: Machine,
        uploads: Uploads,
        is_busy: Callable[[], bool],
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        self._data_dir, self._machine, self._uploads = data_dir, machine, uploads
        self._is_busy, self._every_seconds = is_busy, every_seconds
        #: The ids of the damaged snapshots that were told last.
        self._told: list[str] = []
        self._pauses = Pauses()
        self._stop = threading.Event()
        self._tasks = Tasks()

    def start(self) -> None:
        """Start the schedule."""
        self._tasks.start(repeat(self.look, _LOOK_SECONDS, _log, "packs are not read for now"))

    async def close(self) -> None:
        """Stop the schedule."""
        self._stop.set()
        await self._tasks.cancel()

    async def look(self) -> None:
        """Read the packs that are due, tell which snapshots are damaged, and repair them from remotes."""
        store = self._machine.opened_store
        if store is None:
            return
        due = await asyncio.to_thread(store.pack_checks.due, self._every_seconds)
        if due:
            await self._read_all(store, due)
        await self._tell(store)
        if self._told and self._pauses.is_over and not self._is_busy():
            await self._repair(store)

    async def _read_all(self, store: LocalStore, names: list[str]) -> None:
        reader = await asyncio.to_thread(_Reader)
        try:
            for name in names:
                found = await self._read(reader, store.path_of(name))
                if found.error:
                    _log.warning("pack %s cannot be read: %s", name, found.error)
                elif found.identity is not None:
                    reading = PackReading(found.identity, set(found.intact))
                    if await asyncio.to_thread(store.pack_checks.note, name, reading):
                        await self._tell(store)
        finally:
            await asyncio.to_thread(reader.close)

    async def _read(self, reader: _Reader, path: Path) -> PackRead:
        """Read a pack, and pause while a user waits for other work."""
        wanted = Next(str(path))
        while True:
            while self._is_busy():  # noqa: ASYNC110 - there is no notification of an operation's end
                await asyncio.sleep(_BUSY_SECONDS)
            answer = await asyncio.to_thread(reader.ask, wanted)
            if isinstance(answer, PackRead):
                return answer
            wanted = Next()

    async def _tell(self, store: LocalStore) -> None:
        """Tell clients and the doctor which snapshots are damaged, if these are others than before."""
        found = await asyncio.to_thread(store.damage.note)
        different, self._told = set(found).symmetric_difference(self._told), found
        if not different:
            return
        if found:
            _log.error(
                "%s cannot be resumed, because chunks are damaged: %s",
                counted(len(found), "snapshot"),
                ", ".join(found),
            )
        self._pauses.end()
        for info in await asyncio.to_thread(store.snapshots):
            if info.snapshot_id in different:
                store.on_change(
                    SnapshotChange(info.snapshot_id, info.kernel_id, SnapshotChangeKind.CHANGED)
                )

    async def _repair(self, store: LocalStore) -> None:
        """Fetch what damaged snapshots lack from remotes that have them."""
        await self._uploads.look()
        is_repaired = False
        for info in await asyncio.to_thread(store.snapshots):
            remotes = self._remotes_of(info) if info.snapshot_id in self._told else []
            for remote in remotes:
                try:
                    await asyncio.to_thread(
                        remote_copies.repair, self._data_dir, store, info, remote, self._stop
                    )
                except GpuCkptError as error:
                    _log.warning("snapshot %s is not repaired: %s", info.snapshot_id, error)
                    self._pauses.failed(record_of(error))
                else:
                    _log.info("repaired snapshot %s from remote %s", info.snapshot_id, remote)
                    is_repaired = True
                    break
        if is_repaired:
            await self._tell(store)

    def _remotes_of(self, info: SnapshotInfo) -> list[str]:
        return [one.remote for one in self._uploads.of(info) if one.state is UploadState.UPLOADED]


class _Reader:
    """The connection to the process that reads packs. The constructor raises StoreUnavailable."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._process: subprocess.Popen[bytes] = own_programs.spawn(
                    f"{__package__}.pack_reader", stdin=theirs.fileno()
                )
            except commands.CommandFailed as error:
                self._socket.close()
                raise StoreUnavailable(f"No process can read packs: {error}") from error

    def ask(self, wanted: Next) -> PieceRead | PackRead:
        """Send a request and return the answer. Raises StoreUnavailable if the process has ended."""
        try:
            send(self._socket, wanted)
            answer = receive(self._socket, PieceRead, PackRead)
        except OSError:
            answer = None
        if not isinstance(answer, PieceRead | PackRead):
            raise StoreUnavailable("The process that reads packs has ended.")
        return answer

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        commands.stop(self._process)
