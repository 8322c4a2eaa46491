"""What lies in a remote, and how it comes into the local store: lists of far sessions, estimates before a fetch, fetches.

Every request opens the remote anew, off the event loop, with the credentials that this daemon's environment leads to.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..errors import (
    AccessDenied,
    FarObjectInvalid,
    FarObjectMissing,
    FormatTooNew,
    GpuCkptError,
    HostIncompatible,
    KeyUnavailable,
    OperationCancelled,
    SnapshotNotFound,
    StoreError,
    StoreUnavailable,
)
from ..far_records import (
    FarListing,
    FetchEstimate,
    FetchRequest,
    ListedSession,
    ListedSnapshot,
    RemoteState,
)
from ..model import Manifest, Sizes
from ..progress import Stage
from ..protocol import Event, OperationKind, Result
from ..remote_records import Remote
from ..store import manifests
from ..store.far import capabilities, fetch
from ..store.far.remotes import Remotes
from ..store.far.retries import Retries
from ..store.far.sessions import FarSession, FarSnapshot, Sessions
from . import remote_keys
from .machine import Machine
from .operations import Operations, RunningOperation
from .remote_keys import Opened
from .streams import Streams

#: Fetches at a time; more wait. Each reads by several threads.
AT_ONCE = 2
#: Far sessions that are read at a time.
_READERS = 8
#: How many obstacles a message has.
_SHOWN = 5

_log = logging.getLogger(__name__)


class _Found(NamedTuple):
    """A snapshot in a remote, its manifest, and what a fetch of it would do."""

    opened: Opened
    snapshot: FarSnapshot
    manifest: Manifest
    estimate: FetchEstimate


class _Coming:
    """Subject of a fetch: the kernel of its snapshot, which this daemon need not know, and which nobody owns."""

    owner_id = ""

    def __init__(self, kernel_id: str, streams: Streams, stop: threading.Event) -> None:
        self.kernel_id, self._streams, self._stop = kernel_id, streams, stop

    def on_operation(self, operation: RunningOperation) -> None:
        """Tell whoever follows the fetch, and end its waits if it was cancelled."""
        if operation.progress.cancelled.is_set():
            self._stop.set()
        event = Event(self._streams.advance(), operation=operation.public())
        self._streams.publish(event, droppable=not operation.ended)


class FarSessions:
    """Far sessions of the remotes of this data directory, and the fetches that run.

    `note_there` is told which remote a snapshot came from, before the end of its fetch.
    """

    def __init__(
        self,
        data_dir: Path,
        machine: Machine,
        operations: Operations,
        streams: Streams,
        note_there: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self._data_dir, self._machine = data_dir, machine
        self._operations, self._streams = operations, streams
        self._note_there = note_there
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch")
        #: By the snapshot's id.
        self._running: dict[str, RunningOperation] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def remotes(self) -> list[RemoteState]:
        """List the remotes as they were when they were last tried; none is asked."""
        return await asyncio.to_thread(lambda: [*map(_state, Remotes(self._data_dir).all())])

    async def sessions(self, name: str) -> FarListing:
        """List the far sessions of a remote with their snapshots; raise RemoteNotFound, and what keeps it from being read."""
        with _whose_credentials():
            return await asyncio.to_thread(self._listing, name)

    async def estimate(self, name: str, snapshot_id: str, session_id: str = "") -> FetchEstimate:
        """Return what a fetch would move, and whether the kernel could be resumed here; raise as `fetch` does."""
        with _whose_credentials():
            found = await asyncio.to_thread(self._find, name, snapshot_id, session_id)
        return found.estimate

    async def fetch(self, name: str, snapshot_id: str, request: FetchRequest) -> RunningOperation:
        """Start bringing a snapshot into the local store, or return the operation that does so already.

        Raises RemoteNotFound, SnapshotNotFound, SnapshotExists, FarObjectInvalid, and HostIncompatible if its kernel could not
        be resumed here, unless that is forced; then nothing was moved.
        """
        if running := self._running.get(snapshot_id):
            return running
        stop = threading.Event()
        with _whose_credentials():
            found = await asyncio.to_thread(
                self._find, name, snapshot_id, request.session_id, Retries(stop=stop)
            )
        if not request.force:
            _require_resumable(found.estimate)
        await asyncio.to_thread(self._machine.store.require_absent, snapshot_id)
        # Somebody else may have asked for it meanwhile.
        if running := self._running.get(snapshot_id):
            return running
        coming = _Coming(found.snapshot.kernel_id, self._streams, stop)
        operation = self._operations.add(OperationKind.FETCH, coming)
        self._running[snapshot_id] = operation
        task = asyncio.get_running_loop().create_task(self._run(operation, found))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return operation

    async def close(self) -> None:
        """Cancel the fetches that run, and wait for their threads."""
        for operation in self._running.values():
            operation.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.to_thread(self._threads.shutdown)

    async def _run(self, operation: RunningOperation, found: _Found) -> None:
        loop = asyncio.get_running_loop()
        try:
            result = await loop.run_in_executor(self._threads, self._fetch, operation, found)
            await self._note(found)
        except Exception as error:  # whatever happened, it is the operation's error
            operation.fail(error)
        else:
            operation.succeed(result)
        finally:
            del self._running[found.snapshot.snapshot_id]

    async def _note(self, found: _Found) -> None:
        name = found.opened.remote.name
        try:
            await self._note_there(name, found.snapshot.snapshot_id)
        except GpuCkptError as error:
            _log.warning(
                "remote %s will be asked whether it has what came from it: %s", name, error
            )

    def _fetch(self, operation: RunningOperation, found: _Found) -> Result:
        progress, store = operation.progress, self._machine.store
        moved = 0

        def reach(done: int, total: int) -> None:
            nonlocal moved
            moved = done
            progress.reach(done, total)

        bucket, seal = found.opened.bucket, found.opened.keyring.seal
        try:
            with progress.stage(Stage.FETCH, found.estimate.move_bytes):
                info = fetch.fetch(bucket, seal, found.snapshot, store, reach)
        except OperationCancelled:
            # Nobody wants it; what a fetch that failed brought in serves the next one.
            self._sweep()
            raise
        sizes = Sizes(info.sizes.raw_bytes, info.sizes.stored_bytes, moved, info.sizes.gpu_bytes)
        return Result(
            info.snapshot_id,
            progress.record().seconds,
            sizes,
            seconds_by_stage=dict(progress.seconds_by_stage),
            warnings=[*found.estimate.obstacles, *found.estimate.warnings],
        )

    def _sweep(self) -> None:
        try:
            self._machine.store.sweep()
        except StoreError as error:
            _log.warning("Packs of a fetch that was cancelled are still there: %s", error)

    def _open(self, name: str, retries: Retries | None = None) -> Opened:
        remote = Remotes(self._data_dir).get(name)
        return remote_keys.opened(self._data_dir, remote, retries)

    def _listing(self, name: str) -> FarListing:
        here = self._here()
        sessions, unreadable = [], []
        for one in _read(self._open(name)):
            if isinstance(one, FarSession):
                sessions.append(_listed(one, here))
            else:
                unreadable.append(one.message)
        newest_first = sorted(sessions, key=_newest, reverse=True)
        return FarListing(name, newest_first, unreadable)

    def _here(self) -> set[str]:
        """Return the ids of the snapshots that the local store has, deleted ones that can be undeleted included."""
        deleted = [one.info for one in self._machine.deleted_snapshots()]
        return {info.snapshot_id for info in (*self._machine.snapshots(None), *deleted)}

    def _find(
        self, name: str, snapshot_id: str, session_id: str, retries: Retries | None = None
    ) -> _Found:
        opened = self._open(name, retries)
        session, snapshot = _look_up(opened, snapshot_id, session_id)
        manifest = fetch.far_manifest(opened.bucket, opened.keyring.seal, snapshot).manifest()
        places = self._machine.store.find(manifests.references(manifest))
        here_bytes = int(places.rows["stored_length"].sum())
        arrival = self._machine.check_arrival(manifest)
        here = self._here()
        estimate = FetchEstimate(
            _listed(session, here),
            _listed_snapshot(snapshot, here),
            max(0, manifest.info.sizes.stored_bytes - here_bytes),
            here_bytes,
            arrival.obstacles,
            arrival.warnings,
            arrival.hint,
        )
        return _Found(opened, snapshot, manifest, estimate)


@contextmanager
def _whose_credentials() -> Iterator[None]:
    """Say in an error that the credentials of a shell, with which a remote was added, need not be the daemon's."""
    try:
        yield
    except (AccessDenied, StoreUnavailable) as error:
        if not isinstance(error, KeyUnavailable):
            error.hint = f"{error.hint} The daemon uses the credentials of the environment in which it was started.".strip()
        raise


def _read(opened: Opened) -> Iterator[FarSession | GpuCkptError]:
    """Yield the far sessions of a remote, and of those that cannot be read why: one must not hide the others."""
    sessions = Sessions(opened.bucket, opened.keyring.seal, opened.seen)

    def get(session_id: str) -> FarSession | GpuCkptError | None:
        try:
            return sessions.get(session_id)
        except FarObjectMissing:
            return None  # it went just now
        except (FarObjectInvalid, FormatTooNew) as error:
            return error

    with ThreadPoolExecutor(_READERS, "sessions") as pool:
        yield from (one for one in pool.map(get, sessions.ids()) if one is not None)


def _look_up(opened: Opened, snapshot_id: str, session_id: str) -> tuple[FarSession, FarSnapshot]:
    """Return what a remote lists under this id; raise SnapshotNotFound."""
    found: Iterator[FarSession | GpuCkptError] = _read(opened)
    if session_id:
        sessions = Sessions(opened.bucket, opened.keyring.seal, opened.seen)
        try:
            found = iter([sessions.get(session_id)])
        except FarObjectMissing:
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
        hint=f"`jupyter gpuckpt remote sessions {opened.remote.name}` lists what is there.",
        details="\n".join(unreadable),
    )


def _require_resumable(estimate: FetchEstimate) -> None:
    if estimate.obstacles:
        raise HostIncompatible(
            f"The kernel of snapshot {estimate.snapshot.snapshot_id} could not be resumed here, so it is not fetched. "
            + " ".join(estimate.obstacles[:_SHOWN]),
            hint=f"{estimate.hint} It can be fetched all the same: --force.",
            details="\n".join(estimate.obstacles),
        )


def _state(remote: Remote) -> RemoteState:
    found = remote.capabilities
    if found is None:
        return RemoteState(remote.name, remote.url)
    verdict = capabilities.verdict(found)
    return RemoteState(remote.name, remote.url, found.tried_at, verdict.refusals, verdict.warnings)


def _listed(session: FarSession, here: set[str]) -> ListedSession:
    facts = session.facts
    return ListedSession(
        facts.session_id,
        facts.host_name,
        facts.hub_user,
        facts.server_name,
        facts.path,
        facts.title,
        [_listed_snapshot(one, here) for one in session.listed],
    )


def _listed_snapshot(one: FarSnapshot, here: set[str]) -> ListedSnapshot:
    return ListedSnapshot(
        one.snapshot_id,
        one.kernel_id,
        one.created,
        one.title,
        one.raw_bytes,
        one.stored_bytes,
        one.snapshot_id in here,
    )


def _newest(session: ListedSession) -> float:
    return max((one.created for one in session.snapshots), default=0.0)
