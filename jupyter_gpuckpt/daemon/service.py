"""The composition root of the daemon: its parts, its start, the condition for its exit, and the order of its shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec
from tornado.httpserver import HTTPServer
from tornado.web import RequestHandler

from ..errors import GpuCkptError
from ..linux import disk_reserve
from ..wire.daemon_settings import Settings
from ..wire.manifest_records import SnapshotInfo
from ..wire.place import Place
from ..wire.protocol import PROTOCOL_VERSION, Event, Handshake, package_version
from ..wire.snapshot_records import Snapshot, SnapshotChange
from . import late_imports, lifetime
from .kernels import taken_over
from .kernels.endings import Endings
from .kernels.former import FormerProcesses
from .kernels.kernel_records import Records
from .kernels.kernels import Kernels
from .kernels.machine import Machine
from .kernels.measuring import Measuring
from .kernels.operations import Operations
from .kernels.owners import Owners
from .kernels.ready_copies import ReadyCopies
from .kernels.ready_trees import ReadyTrees
from .kernels.streams import Streams
from .kernels.verbs import Verbs
from .reclaim.notice_watch import Watch
from .reclaim.reaction import Reaction
from .remotes import remote_copies
from .remotes.collecting import RemoteCollecting
from .remotes.kernel_moves import Moves
from .remotes.leases import DaemonLeases, LeaseRenewal, LostLeases
from .remotes.listed_checks import ListedChecks
from .remotes.near_copy import NearCopy
from .remotes.new_remotes import NewRemotes
from .remotes.session_requests import RemoteSessions
from .remotes.uploads import Uploads
from .scrub.scrubbing import Scrubbing
from .snapshots.inventory import Inventory, needed_ids
from .snapshots.removal import Removal
from .snapshots.transfers import Transfers

#: The longest interval between two checks for whether the daemon is still needed; each check also writes the heartbeat.
LOOK_SECONDS = 5.0
#: How long the daemon waits for the first request at least: the client that started it may be slow on a busy machine.
_FIRST_REQUEST_SECONDS = 10.0
#: How long the daemon waits at its exit for the answers to its last requests.
_ANSWER_SECONDS, _PAUSE_SECONDS = 10.0, 0.02

_log = logging.getLogger(__name__)


class Daemon:
    """The composition root of a daemon: it constructs all parts on the event loop and serves until it is no longer needed."""

    def __init__(self, settings: Settings, place: Place, records: Records) -> None:
        self.settings, self.place, self.records = settings, place, records
        self._loop = asyncio.get_running_loop()
        ready_trees = ReadyTrees()
        self.machine = Machine(
            settings,
            place,
            self._on_snapshot,
            ready=ready_trees,
            local_chunks=remote_copies.local_chunks,
        )
        self.streams = Streams()
        self.operations = Operations(self.streams)
        self.kernels = Kernels(records, self.machine, self.streams)
        self.measuring = Measuring(self.kernels, self.machine)
        self.transfers = Transfers(self.machine)
        self.inventory = Inventory(self.kernels, records, self.machine)
        self.removal = Removal(
            self.inventory,
            self.machine,
            self.operations,
            data_dir=settings.data,
            undo_seconds=settings.undo_delete_seconds,
            on_deleted=self._look_for_deletions,
            uploading=self._uploading,
        )
        self.leases = DaemonLeases(settings.data, self.machine, self.kernels, place)
        self.ready_copies = ReadyCopies(
            self.machine, records, ready_trees, settings.data / "log" / "kernels"
        )
        self.verbs = Verbs(
            place,
            self.kernels,
            self.operations,
            self.machine,
            records,
            self.leases,
            self.ready_copies,
            self.removal.after,
        )
        self.endings = Endings(self.kernels, self.verbs, self.removal.delete_periodic)
        self.former = FormerProcesses(
            records.state_dir / "former",
            place,
            self.kernels,
            self.verbs,
            self.machine,
            self.leases.next_number,
        )
        on_lost = LostLeases(settings.data, self.kernels, self.verbs).note
        self.uploads = Uploads(
            self.machine,
            settings.data,
            lambda: self.needs_quiet,
            self._publish,
            on_lost,
            self.inventory,
        )
        self.lease_renewal = LeaseRenewal(
            self.leases, self.kernels, self.uploads.by_remote, on_lost
        )
        self.moves = Moves(
            settings.data,
            self.kernels,
            self.operations,
            self.streams,
            self.uploads,
            self.leases,
        )
        self.snapshot_lists = SnapshotLists(
            self.inventory, self.kernels, self.machine, self.uploads
        )
        self.near_copy = NearCopy(
            settings.near_bytes,
            settings.data,
            self.machine,
            self.inventory,
            self.uploads,
            lambda: self.operations.any_running,
        )
        self.remote_sessions = RemoteSessions(
            settings.data,
            self.machine,
            self.operations,
            self.streams,
            self.uploads.note_there,
            self.leases,
        )
        self.new_remotes = NewRemotes(settings.data)
        self.listed_checks = ListedChecks(
            settings.data,
            self.uploads,
            lambda: self.needs_quiet or self.uploads.any_pending,
        )
        self.remote_collecting = RemoteCollecting(
            settings.data,
            settings.collect_remote_every_seconds,
            lambda: self.needs_quiet or self.uploads.any_pending,
        )
        self.scrubbing = Scrubbing(
            settings.data, self.machine, self.uploads, lambda: self.needs_quiet
        )
        self.watch = Watch()
        self.reaction = Reaction(
            self.streams,
            self.kernels,
            self.operations,
            self.verbs,
            self.measuring,
            self.machine,
            self.uploads,
            self.watch.acknowledge,
        )
        self.owners = Owners(
            self.streams,
            self.kernels,
            self.operations,
            self.verbs,
            records,
            self.machine,
            self.ready_copies,
            self.reaction.standing,
        )
        #: The requests that are being answered.
        self._requests: set[RequestHandler] = set()
        self._left = asyncio.Event()
        self._touched = time.monotonic()
        self._requested = False
        self._looked_for_imports = False

    @property
    def needed(self) -> bool:
        """Return whether a kernel or an operation would be lost if the daemon exited. Suspended kernels are on disk."""
        return self.kernels.any_alive or self.operations.any_running or self.former.any_kept

    @property
    def needs_quiet(self) -> bool:
        """Return whether something runs for which a user waits, and which uploads would delay."""
        return self.operations.any_disturbed or self.transfers.any_running

    def _is_in_use(self) -> bool:
        return (
            self.needed
            or bool(self._requests)
            or bool(self.streams)
            or self.transfers.any_running
            or self.uploads.any_pending
        )

    def begin(self, request: RequestHandler) -> None:
        """Register a request as in progress. The daemon does not leave before it is answered."""
        self._requests.add(request)
        self._requested = True

    def finish(self, request: RequestHandler) -> None:
        """Register a request as ended, and reset the idle-exit timer."""
        self._requests.discard(request)
        self._touched = time.monotonic()

    def _look_for_deletions(self) -> None:
        self.uploads.wake()

    def _uploading(self) -> set[str]:
        return self.uploads.uploading

    def _on_snapshot(self, change: SnapshotChange) -> None:
        """Handle a change in the store, told in any thread. The event loop does so later, so never before all parts are constructed."""
        with suppress(RuntimeError):  # the event loop is closed: the daemon exits
            self._loop.call_soon_threadsafe(self._handle, change)

    def _handle(self, change: SnapshotChange) -> None:
        self.uploads.on_snapshot(change)
        self._publish(change)

    def _publish(self, change: SnapshotChange) -> None:
        self.near_copy.wake()
        self.leases.wake()
        self.streams.publish(Event(self.streams.advance(), snapshot=change))

    def leave(self) -> None:
        """Stop the daemon."""
        self._left.set()

    async def handshake(self) -> Handshake:
        """Return this daemon's identity and the report on this machine."""
        report = await asyncio.to_thread(self.machine.report)
        return Handshake(
            protocol=PROTOCOL_VERSION,
            version=package_version(),
            place=self.place.key,
            data_dir=self.place.data_dir,
            pid=os.getpid(),
            engine_available=report.engine_available,
            reason=report.reason,
            hint=report.hint,
        )

    async def serve(
        self, server: HTTPServer, listen: Callable[[], socket.socket], ready: Callable[[], None]
    ) -> None:
        """Recover the kernels that the last daemon left, then answer requests until the daemon is no longer needed.

        `listen`: returns the socket. Before the first request could be answered there is none, so that no client takes this daemon
        for one that does not answer.
        """
        found = await asyncio.to_thread(self.records.mine)
        if found:
            await asyncio.to_thread(late_imports.load)
        found = await self.former.recover(found)
        await self.kernels.recover_all(found, self.former.trees)
        await asyncio.to_thread(self.machine.clear, {one.kernel_id for one in self.kernels})
        await asyncio.to_thread(self.machine.resume_times.load)
        self.owners.expect_after_restart()
        self.endings.expect_all()
        self.former.start()
        self.removal.expect_all()
        await self.uploads.start()
        self.lease_renewal.start()
        self.near_copy.start()
        self.remote_collecting.start()
        self.listed_checks.start()
        self.scrubbing.start()
        server.add_socket(listen())
        lifetime.on_stop(lambda: self.needed, self.leave)
        _log.info("gpuckptd %s serves place %s", package_version(), self.place.key)
        self.measuring.start()
        self.reaction.start()
        if self.settings.reclaim_notices:
            self.watch.start(self.reaction.take)
        ready()
        self._touched = time.monotonic()
        self.machine.warm_up()
        await self._until_left()
        server.stop()
        await self._until_answered()
        await self.measuring.close()
        await self.watch.close()
        await self.reaction.close()
        await server.close_all_connections()
        await self.former.close()
        await self.verbs.close()
        await self.removal.close()
        await self.transfers.close()
        await self.moves.close()
        await self.remote_sessions.close()
        await self.near_copy.close()
        await self.remote_collecting.close()
        await self.listed_checks.close()
        await self.scrubbing.close()
        await self.lease_renewal.close()
        self.leases.close()
        await self.uploads.close()
        await self.kernels.close()
        await asyncio.to_thread(self.machine.close)

    async def _import_early(self) -> None:
        """Import what a launch needs, which then need not wait for it; a launch reports a failure."""
        try:
            await asyncio.to_thread(late_imports.load)
        except GpuCkptError as error:
            _log.error("%s %s", error, error.hint)

    async def _until_answered(self) -> None:
        """Wait until the requests that arrived before the listener was closed are answered, but not for long."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        while self._requests and not self._left.is_set() and time.monotonic() < deadline:  # noqa: ASYNC110 - once, at the exit
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _until_left(self) -> None:
        idle_exit = self.settings.idle_exit_seconds
        while not self._left.is_set():
            await asyncio.to_thread(self.records.beat)
            for folder in (self.settings.data, self.settings.store):
                await asyncio.to_thread(disk_reserve.fill, folder)
            await self.kernels.drop_moved()
            await taken_over.note_lost(self.kernels, self.records)
            await self.kernels.protect_servers()
            await self.kernels.learn_programs()
            if not self._looked_for_imports and self._is_in_use():
                self._looked_for_imports = True
                await self._import_early()
            await self.uploads.look()
            if self._is_in_use():
                self._touched = time.monotonic()
            wait = idle_exit if self._requested else max(idle_exit, _FIRST_REQUEST_SECONDS)
            remaining = self._touched + wait - time.monotonic()
            if remaining <= 0:
                _log.info("leaving: nothing runs and no client was connected for %.0f s", idle_exit)
                return
            pause = max(0.05, min(remaining, idle_exit, LOOK_SECONDS))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._left.wait()


class SnapshotLists:
    """The maker of the lists of snapshots that clients see: with their uploads, and with what kernels need."""

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
