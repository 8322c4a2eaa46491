"""Requests about the content of remotes: lists of remote sessions, estimates before a fetch, and fetches into the local store.

Every request opens the remote anew, with the credentials of this daemon's environment. Each remote has threads of its own, so that
one that does not answer delays no other.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from ...errors import (
    FormatTooNew,
    GpuCkptError,
    HostIncompatible,
    OperationCancelled,
    RemoteObjectInvalid,
    RemoteObjectMissing,
    SnapshotNotFound,
    StoreError,
)
from ...remote import capabilities
from ...remote.remote_list import Remotes, state_folder
from ...remote.remote_sessions import Lease, RemoteSession, RemoteSnapshot
from ...remote.retries import Retries
from ...store import manifests
from ...wire.manifest_records import Manifest, Sizes
from ...wire.progress import Stage
from ...wire.protocol import OperationKind, Result
from ...wire.remote_listings import (
    FetchEstimate,
    FetchRequest,
    ListedSession,
    ListedSnapshot,
    RemoteListing,
    RemoteState,
)
from ...wire.remote_records import Remote
from ..kernels.machine import Machine
from ..kernels.operations import Operations, RunningOperation
from ..kernels.streams import Streams
from ..repeating import Tasks
from . import remote_keys
from .leases import DaemonLeases, LeaseFile
from .new_remotes import daemon_credentials
from .remote_keys import Opened

#: The number of concurrent fetches from one remote; more wait. Each uses several threads.
AT_ONCE = 2
#: The number of concurrent questions to one remote.
_QUESTIONS = 4
#: The number of remote sessions that are read concurrently.
_READERS = 8
#: The most obstacles that a message lists.
_SHOWN = 5

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class _Found(NamedTuple):
    """A snapshot in a remote, its manifest, and the estimate of its fetch."""

    opened: Opened
    snapshot: RemoteSnapshot
    manifest: Manifest
    estimate: FetchEstimate


class _FetchSubject:
    """The subject of a fetch: the kernel of its snapshot. This daemon need not manage that kernel, and nobody owns it."""

    owner_id = ""

    def __init__(self, kernel_id: str, streams: Streams, stop: threading.Event) -> None:
        self.kernel_id, self._streams, self._stop = kernel_id, streams, stop

    def on_operation(self, operation: RunningOperation) -> None:
        """Publish the progress of the fetch, and end its waits if it was cancelled."""
        if operation.progress.cancelled.is_set():
            self._stop.set()
        self._streams.publish_operation(operation.public())


class RemoteSessions:
    """Remote sessions of the remotes of this data directory, and the fetches that run.

    `note_there`: called before the end of a fetch with the remote and the snapshot.
    """

    def __init__(
        self,
        data_dir: Path,
        machine: Machine,
        operations: Operations,
        streams: Streams,
        note_there: Callable[[str, str], Awaitable[None]],
        leases: DaemonLeases,
    ) -> None:
        self._data_dir, self._machine = data_dir, machine
        self._operations, self._streams = operations, streams
        self._note_there, self._leases = note_there, leases
        #: The threads for questions and for fetches, by the remote's name.
        self._asking: dict[str, ThreadPoolExecutor] = {}
        self._fetching: dict[str, ThreadPoolExecutor] = {}
        self._is_over = threading.Event()
        #: The running fetches, by the snapshot's id.
        self._running: dict[str, RunningOperation] = {}
        self._tasks = Tasks()

    async def remotes(self) -> list[RemoteState]:
        """List the remotes as they were when they were last tried; none is asked."""
        return await asyncio.to_thread(lambda: [*map(_state, Remotes(self._data_dir).all())])

    async def sessions(self, name: str) -> RemoteListing:
        """List the remote sessions of a remote with their snapshots. Raises RemoteNotFound, and what `Bucket` raises."""
        return await self._ask(name, lambda remote: self._listing(self._open(remote)))

    async def estimate(self, name: str, snapshot_id: str, session_id: str = "") -> FetchEstimate:
        """Return what a fetch would move, and whether the kernel could be resumed here. Raises what `fetch` raises."""
        found = await self._ask(
            name,
            lambda remote: self._find(self._open(remote), snapshot_id, session_id, to_fetch=False),
        )
        estimate, remote = found.estimate, found.opened.remote
        if not estimate.session.leased_to:
            return estimate
        lease = await asyncio.to_thread(
            self._leases.lease_elsewhere, remote, estimate.session.session_id
        )
        return msgspec.structs.replace(estimate, session=_leased(estimate.session, lease))

    async def fetch(self, name: str, snapshot_id: str, request: FetchRequest) -> RunningOperation:
        """Start bringing a snapshot into the local store, or return the operation that does so already.

        Raises, before anything is moved, RemoteNotFound, SnapshotNotFound, SnapshotExists, RemoteObjectInvalid, SessionHeld if another
        machine runs its session, and HostIncompatible if its kernel could not be resumed here, unless the fetch is forced.
        """
        if running := self._running.get(snapshot_id):
            return running
        stop = threading.Event()
        found = await self._ask(
            name,
            lambda remote: self._find(
                self._open(remote, stop), snapshot_id, request.session_id, to_fetch=True
            ),
        )
        if not request.force:
            _require_resumable(found.estimate)
        await asyncio.to_thread(self._require_wanted, snapshot_id)
        kernel_id = found.snapshot.kernel_id
        if not request.as_copy:
            warnings = await asyncio.to_thread(
                self._leases.claim_to_fetch,
                found.opened.remote,
                kernel_id,
                found.estimate.session.session_id,
                take_over=request.take_over,
            )
            found.estimate.warnings.extend(warnings)
        # Another client may have started the same fetch meanwhile.
        if running := self._running.get(snapshot_id):
            return running
        subject = _FetchSubject(found.snapshot.kernel_id, self._streams, stop)
        operation = self._operations.add(OperationKind.FETCH, subject)
        self._running[snapshot_id] = operation
        self._tasks.start(self._run(operation, found))
        return operation

    async def close(self) -> None:
        """Cancel the running fetches and wait for their threads. Questions are not waited for: they end with an answer or a time-out."""
        self._is_over.set()
        for operation in self._running.values():
            operation.cancel()
        await self._tasks.wait()
        for threads in self._fetching.values():
            await asyncio.to_thread(threads.shutdown)
        for threads in self._asking.values():
            threads.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, name: str, question: Callable[[Remote], _Answer]) -> _Answer:
        """Run `question` in a thread of the remote and return its answer. Raises RemoteNotFound, and what `question` raises."""
        remote = await asyncio.to_thread(Remotes(self._data_dir).get, name)
        threads = _threads_of(self._asking, name, _QUESTIONS)
        with daemon_credentials():
            return await asyncio.get_running_loop().run_in_executor(threads, question, remote)

    async def _run(self, operation: RunningOperation, found: _Found) -> None:
        loop = asyncio.get_running_loop()
        threads = _threads_of(self._fetching, found.opened.remote.name, AT_ONCE)
        try:
            result = await loop.run_in_executor(threads, self._fetch, operation, found)
            await self._note(found)
        except Exception as error:  # whatever happened, it is the operation's error
            self._leases.fetched(found.snapshot.kernel_id, keep_seconds=0.0)
            operation.fail(error)
        else:
            self._leases.fetched(found.snapshot.kernel_id)
            operation.succeed(result)
        finally:
            del self._running[found.snapshot.snapshot_id]

    async def _note(self, found: _Found) -> None:
        name, snapshot = found.opened.remote.name, found.snapshot
        try:
            leases = LeaseFile(state_folder(self._data_dir, name))
            session_id = found.estimate.session.session_id
            await asyncio.to_thread(
                leases.note_fetched, snapshot.kernel_id, snapshot.snapshot_id, session_id
            )
            await self._note_there(name, snapshot.snapshot_id)
        except GpuCkptError as error:
            _log.warning(
                "remote %s will be asked whether it has what came from it: %s", name, error
            )

    def _require_wanted(self, snapshot_id: str) -> None:
        from .. import late_modules  # noqa: PLC0415 - late: see there

        late_modules.fetch.require_wanted(self._machine.store, snapshot_id)

    def _fetch(self, operation: RunningOperation, found: _Found) -> Result:
        from .. import late_modules  # noqa: PLC0415 - late: see there

        progress, store = operation.progress, self._machine.store
        moved = 0

        def reach(done: int, total: int) -> None:
            nonlocal moved
            moved = done
            progress.reach(done, total)

        bucket, seal = found.opened.bucket, found.opened.key.seal
        try:
            with progress.stage(Stage.FETCH, found.estimate.move_bytes):
                checkers = late_modules.check_client.checkers
                info = late_modules.fetch.fetch(
                    bucket, seal, found.snapshot, store, reach, checkers
                )
        except OperationCancelled:
            # Nobody wants the packs of a cancelled fetch. Those of a failed one stay, because its repetition uses them.
            with suppress(StoreError):
                store.sweep()
            raise
        sizes = Sizes(info.sizes.raw_bytes, info.sizes.stored_bytes, moved, info.sizes.gpu_bytes)
        return Result(
            info.snapshot_id,
            progress.record().seconds,
            sizes,
            seconds_by_stage=dict(progress.seconds_by_stage),
            warnings=[*found.estimate.obstacles, *found.estimate.warnings],
        )

    def _open(self, remote: Remote, stop: threading.Event | None = None) -> Opened:
        retries = Retries.while_somebody_waits(stop or self._is_over)
        return remote_keys.opened(self._data_dir, remote, retries)

    def _listing(self, opened: Opened) -> RemoteListing:
        local_snapshots = self._local_snapshots()
        sessions, unreadable = [], []
        for one in _read(opened):
            if isinstance(one, RemoteSession):
                if not one.listed and not one.lease:
                    continue  # it was erased, or all of it was deleted
                runs_here = one.lease is not None and one.lease.daemon_id == self._leases.daemon_id
                listed = _listed(one, local_snapshots)
                sessions.append(msgspec.structs.replace(listed, runs_here=runs_here))
            else:
                unreadable.append(one.message)
        sessions.sort(key=rank)
        return RemoteListing(opened.remote.name, sessions, unreadable)

    def _local_snapshots(self) -> dict[str, bool]:
        """Return the ids of the local store's snapshots, also of deleted ones that can be undeleted; True: it is a stub."""
        deleted = [one.info for one in self._machine.deleted_snapshots()]
        found, stubs = self._machine.snapshots(None), self._machine.store.stubs.all()
        return {info.snapshot_id: info.snapshot_id in stubs for info in (*found, *deleted)}

    def _find(self, opened: Opened, snapshot_id: str, session_id: str, *, to_fetch: bool) -> _Found:
        from .. import late_modules  # noqa: PLC0415 - late: see there

        session, snapshot = _look_up(opened, snapshot_id, session_id)
        if to_fetch:
            # A fetch uses the processes of a resume, and is followed by one. They start while its manifest is read.
            self._machine.expect(snapshot.raw_bytes)
        remote_manifest = late_modules.fetch.remote_manifest(
            opened.bucket, opened.key.seal, snapshot
        )
        manifest = remote_manifest.manifest()
        places = self._machine.store.find(manifests.references(manifest))
        here_bytes = int(places.rows["stored_length"].sum())
        arrival = self._machine.check_arrival(manifest)
        local_snapshots = self._local_snapshots()
        estimate = FetchEstimate(
            _listed(session, local_snapshots),
            _listed_snapshot(snapshot, local_snapshots),
            max(0, manifest.info.sizes.stored_bytes - here_bytes),
            here_bytes,
            arrival.obstacles,
            arrival.warnings,
            arrival.hint,
        )
        return _Found(opened, snapshot, manifest, estimate)


def _threads_of(kept: dict[str, ThreadPoolExecutor], name: str, at_once: int) -> ThreadPoolExecutor:
    if name not in kept:
        kept[name] = ThreadPoolExecutor(at_once, thread_name_prefix=f"remote {name}")
    return kept[name]


def _read(opened: Opened) -> Iterator[RemoteSession | GpuCkptError]:
    """Yield the remote sessions of a remote. For one that cannot be read, yield the error, so that it does not hide the others."""
    sessions = opened.sessions

    def get(session_id: str) -> RemoteSession | GpuCkptError | None:
        try:
            return sessions.get(session_id)
        except RemoteObjectMissing:
            return None  # it was removed just now
        except (RemoteObjectInvalid, FormatTooNew) as error:
            return error

    with ThreadPoolExecutor(_READERS, "sessions") as pool:
        yield from (one for one in pool.map(get, sessions.ids()) if one is not None)


def _look_up(
    opened: Opened, snapshot_id: str, session_id: str
) -> tuple[RemoteSession, RemoteSnapshot]:
    """Return the entry of this snapshot in a remote, with its remote session. Raises SnapshotNotFound."""
    found: Iterator[RemoteSession | GpuCkptError] = _read(opened)
    if session_id:
        try:
            found = iter([opened.sessions.get(session_id)])
        except RemoteObjectMissing:
            found = iter([])
    unreadable = []
    for session in found:
        if isinstance(session, GpuCkptError):
            unreadable.append(session.message)
            continue
        for snapshot in session.listed:
            if snapshot.snapshot_id == snapshot_id:
                return session, snapshot
    raise SnapshotNotFound(
        f"Remote {opened.remote.name} lists no snapshot {snapshot_id}.",
        command=f"`jupyter gpuckpt remote sessions {opened.remote.name}` lists what is there.",
        details="\n".join(unreadable),
    )


def _require_resumable(estimate: FetchEstimate) -> None:
    """Raise HostIncompatible if the kernel of a snapshot could not be resumed here."""
    if estimate.obstacles:
        raise HostIncompatible(
            f"The kernel of snapshot {estimate.snapshot.snapshot_id} could not be resumed here, so it is not fetched. "
            + " ".join(estimate.obstacles[:_SHOWN]),
            hint=estimate.hint,
            details="\n".join(estimate.obstacles),
            command="It can be fetched all the same: --force.",
        )


def _state(remote: Remote) -> RemoteState:
    """Return a remote as it was when it was last tried."""
    found = remote.capabilities
    if found is None:
        return RemoteState(remote.name, remote.url)
    verdict = capabilities.verdict(found)
    return RemoteState(remote.name, remote.url, found.tried_at, verdict.refusals, verdict.warnings)


def _listed(session: RemoteSession, local_snapshots: dict[str, bool]) -> ListedSession:
    """Return a remote session for display. `local_snapshots`: the snapshots of the local store; True: as a stub."""
    facts, lease = session.facts, session.lease
    listed = ListedSession(
        facts.session_id,
        facts.host_name,
        facts.hub_user,
        facts.server_name,
        facts.path,
        facts.title,
        [_listed_snapshot(one, local_snapshots) for one in session.listed],
        moved_at=0.0 if lease else session.moved_at,
    )
    return _leased(listed, lease)


def _leased(session: ListedSession, lease: Lease | None) -> ListedSession:
    """Return a remote session for display with the machine of this lease."""
    host = lease.host_name or lease.daemon_id if lease else ""
    return msgspec.structs.replace(
        session, leased_to=host, leased_since=lease.since if lease else 0.0
    )


def _listed_snapshot(one: RemoteSnapshot, local_snapshots: dict[str, bool]) -> ListedSnapshot:
    """Return a snapshot of a remote session for display. `local_snapshots`: as in `_listed`."""
    return ListedSnapshot(
        one.snapshot_id,
        one.kernel_id,
        one.created,
        one.title,
        one.raw_bytes,
        one.stored_bytes,
        one.snapshot_id in local_snapshots,
        local_snapshots.get(one.snapshot_id, False),
    )


def rank(session: ListedSession) -> tuple[float, bool, float]:
    """Return the sort key of a session in a list: first those that were moved, then those that nobody runs, then the newest.

    Those whose newest snapshot is here are no longer offered.
    """
    newest = next(iter(session.snapshots), None)
    is_offered = newest is not None and not session.leased_to and not newest.here
    moved_at = session.moved_at if is_offered else 0.0
    return -moved_at, not is_offered, -newest.created if newest else 0.0
