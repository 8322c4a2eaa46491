"""Uploading of snapshots to remotes, behind everything that a user waits for: one at a time, the newest first.

What a remote has is on record beside its state; what is not, waits. So nothing is lost when a daemon ends: the next one looks what
is missing. A daemon that nobody needs stays while something is waiting, because the machine may be gone before the next one is
started; where the remote cannot be reached it leaves after an hour.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import GpuCkptError, OperationCancelled
from ..model import SnapshotInfo
from ..remote_records import Remote
from ..snapshot_records import (
    RemoteUploads,
    SnapshotChange,
    SnapshotChangeKind,
    Upload,
    UploadRequest,
    UploadState,
)
from ..store import manifests
from ..store.far.remotes import Remotes
from ..store.far.upload import Sent
from . import remote_keys
from .far_facts import facts_of
from .machine import Machine
from .sending import Sending
from .upload_queue import RemoteQueue, Uploaded, read_uploaded, write_uploaded

#: How soon an upload gives way to what a user waits for.
_LOOK_SECONDS = 0.2
#: How soon a store that could not be read is read again.
_AGAIN_SECONDS = 5.0

_log = logging.getLogger(__name__)


@dataclass
class _Current:
    """The upload that runs."""

    queue: RemoteQueue
    info: SnapshotInfo
    sending: Sending
    done_bytes: int = 0
    total_bytes: int = 0

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        self.done_bytes, self.total_bytes = done_bytes, total_bytes


class Uploads:
    """The queues of all remotes, and the upload that runs. On the event loop's thread.

    `is_busy`: whether something runs that a user waits for. `tell`: of a snapshot whose uploads changed.
    """

    def __init__(
        self,
        machine: Machine,
        data_dir: Path,
        is_busy: Callable[[], bool],
        tell: Callable[[SnapshotChange], None],
    ) -> None:
        self._machine, self._data_dir = machine, data_dir
        self._is_busy, self._tell_others = is_busy, tell
        self._remotes = Remotes(data_dir)
        #: Which writing of the remotes' file is known.
        self._known: object = None
        self._queues: dict[str, RemoteQueue] = {}
        self._here: dict[str, SnapshotInfo] = {}
        self._is_stale = True
        self._current: _Current | None = None
        self._one_at_a_time = asyncio.Lock()
        self._woken = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="upload")
        self._task: asyncio.Task[None] | None = None
        self._notes: set[asyncio.Task[None]] = set()

    @property
    def any_pending(self) -> bool:
        """Return whether something is uploaded, or may be soon."""
        return self._current is not None or any(
            queue.is_worth_waiting(self._here) for queue in self._queues.values()
        )

    async def start(self) -> None:
        """Begin with what earlier daemons left."""
        await self.look()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop; the next daemon goes on."""
        if self._task is not None:
            self._task.cancel()
            if self._current is not None:
                self._current.sending.stop()
            await asyncio.wait({self._task})
        if self._notes:
            await asyncio.wait(self._notes)
        await asyncio.to_thread(self._thread.shutdown)

    async def look(self) -> None:
        """Take in remotes that were added, changed or removed."""
        async with self._one_at_a_time:
            known = await asyncio.to_thread(_identity, self._remotes.path)
            if known == self._known:
                return
            try:
                found = await asyncio.to_thread(self._remotes.all)
                uploaded = await asyncio.to_thread(
                    lambda: {one.name: read_uploaded(self._record_of(one.name)) for one in found}
                )
            except GpuCkptError as error:
                _log.warning("remotes are used as they were: %s", error)
            else:
                self._take(found, uploaded)
            self._known = known

    def on_snapshot(self, change: SnapshotChange) -> None:
        """Take in that a snapshot came or went."""
        if change.change is SnapshotChangeKind.CHANGED:
            return
        gone = change.change is SnapshotChangeKind.REMOVED
        if gone and self._current and self._current.info.snapshot_id == change.snapshot_id:
            self._current.sending.stop()
        self._is_stale = True
        self._woken.set()

    def of(self, info: SnapshotInfo) -> list[Upload]:
        """Return a snapshot's ways to remotes."""
        found = [self._upload_of(info, queue) for queue in self._queues.values()]
        return [one for one in found if one is not None]

    async def views(self) -> list[RemoteUploads]:
        """Return how every remote stands."""
        await self.look()
        await self._refresh()
        current = self._current
        return [
            queue.view(
                self._here,
                current.info.snapshot_id if current and current.queue is queue else "",
            )
            for queue in self._queues.values()
        ]

    async def ask(self, request: UploadRequest) -> None:
        """Upload snapshots before all others. Raises RemoteNotFound, SnapshotNotFound."""
        await self.look()
        queue = self._queues.get(request.remote)
        if queue is None:
            queue = self._queues[(await asyncio.to_thread(self._remotes.get, request.remote)).name]
        self._is_stale = True
        await self._refresh()
        for snapshot_id in request.snapshot_ids:
            if snapshot_id not in self._here:
                raise manifests.not_found(snapshot_id)
        queue.ask(request.snapshot_ids)
        self._tell(*request.snapshot_ids)
        self._woken.set()

    async def note_there(self, name: str, snapshot_id: str) -> None:
        """Take in that a snapshot came from a remote, which need not be asked whether it has it. Raises StoreError.

        It goes on record in the background: an upload to that remote may have to end first, and waits for who waits for this.
        """
        await self.look()
        if (queue := self._queues.get(name)) is None:
            return
        self._is_stale = True
        await self._refresh()
        last_at = queue.uploaded.last_at
        queue.uploaded = queue.uploaded.and_now(snapshot_id, self._here, last_at=last_at)
        task = asyncio.get_running_loop().create_task(self._note_on_record(queue))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _note_on_record(self, queue: RemoteQueue) -> None:
        try:
            await asyncio.to_thread(self._put_on_record, queue.remote, queue.uploaded)
        except (GpuCkptError, OSError) as error:
            _log.warning("remote %s will be asked what it has: %s", queue.remote.name, error)

    def _take(self, found: list[Remote], uploaded: dict[str, Uploaded]) -> None:
        before, self._queues = self._queues, {}
        for remote in found:
            queue = before.get(remote.name)
            if queue is None:
                queue = RemoteQueue(remote, uploaded[remote.name])
            elif queue.remote != remote:
                queue.change(remote, uploaded[remote.name])
                self._stop_if(queue)
            self._queues[remote.name] = queue
        for name in before.keys() - self._queues.keys():
            self._stop_if(before[name])
        self._is_stale = True
        self._woken.set()

    def _stop_if(self, queue: RemoteQueue) -> None:
        if self._current is not None and self._current.queue is queue:
            self._current.sending.stop()

    async def _refresh(self) -> None:
        """Read which snapshots there are, if that may have changed. The store is not opened where there is no remote."""
        if not self._is_stale:
            return
        self._is_stale = False
        found: list[SnapshotInfo] = []
        if self._queues:
            try:
                found = await asyncio.to_thread(self._machine.snapshots, None)
            except BaseException:
                self._is_stale = True
                raise
        self._here = {info.snapshot_id: info for info in found}
        for queue in self._queues.values():
            queue.forget_others(self._here)

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                await self._refresh()
                if (due := self._due()) is not None:
                    await self._upload(*due)
                    continue
            except GpuCkptError as error:
                _log.warning("uploads wait: %s", error)
            except Exception:
                _log.exception("uploads wait")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_left()):
                    await self._woken.wait()

    def _due(self) -> tuple[RemoteQueue, SnapshotInfo] | None:
        """Return what comes next: what a user asked for, or else the newest."""
        found = [
            (snapshot_id in queue.asked, self._here[snapshot_id].created, queue, snapshot_id)
            for queue in self._queues.values()
            if (snapshot_id := queue.next(self._here)) in self._here
        ]
        if not found:
            return None
        *_, queue, snapshot_id = max(found, key=lambda one: one[:2])
        return queue, self._here[snapshot_id]

    def _seconds_left(self) -> float | None:
        if self._is_stale:
            return _AGAIN_SECONDS
        left = (queue.seconds_left(self._here) for queue in self._queues.values())
        return min((one for one in left if one is not None), default=None)

    async def _upload(self, queue: RemoteQueue, info: SnapshotInfo) -> None:
        while self._is_busy():  # noqa: ASYNC110 - operations tell nobody of their end
            await asyncio.sleep(_LOOK_SECONDS)
        remote, snapshot_id = queue.remote, info.snapshot_id
        if self._queues.get(remote.name) is not queue or queue.next(self._here) != snapshot_id:
            return  # it has changed meanwhile
        sending = Sending(self._data_dir, remote, snapshot_id)
        self._current = current = _Current(queue, info, sending)
        self._tell(snapshot_id)
        try:
            sent = await self._sent(current)
            uploaded = queue.uploaded.and_now(snapshot_id, self._here)
            await asyncio.to_thread(self._put_on_record, remote, uploaded)
        except OperationCancelled:
            return
        except Exception as error:
            if not isinstance(error, GpuCkptError):
                _log.exception("snapshot %s was not uploaded", snapshot_id)
            _log.warning("snapshot %s was not uploaded to %s: %s", snapshot_id, remote.name, error)
            queue.failed(snapshot_id, error)
            self._is_stale = True  # it may be gone
        else:
            queue.succeeded(snapshot_id, uploaded)
            size = sent.count_bytes / 1e6
            _log.info("uploaded snapshot %s to %s: %.1f MB", snapshot_id, remote.name, size)
        finally:
            self._current = None
            self._tell(snapshot_id)

    async def _sent(self, current: _Current) -> Sent:
        """Wait until a snapshot is uploaded, which gives way to what a user waits for."""
        loop = asyncio.get_running_loop()

        def progress(done: int, total: int) -> None:
            loop.call_soon_threadsafe(current.advance, done, total)

        work = loop.run_in_executor(
            self._thread, lambda: current.sending.run(self._machine.store, facts_of, progress)
        )
        try:
            while not work.done():
                await asyncio.to_thread(current.sending.hold, on=self._is_busy())
                await asyncio.wait({work}, timeout=_LOOK_SECONDS)
        finally:
            if not work.done():  # the daemon leaves
                current.sending.stop()
        return work.result()

    def _put_on_record(self, remote: Remote, uploaded: Uploaded) -> None:
        with remote_keys.uploading(self._data_dir, remote):
            write_uploaded(self._record_of(remote.name), uploaded)

    def _record_of(self, name: str) -> Path:
        return remote_keys.state_dir(self._data_dir, name) / "uploaded.json"

    def _upload_of(self, info: SnapshotInfo, queue: RemoteQueue) -> Upload | None:
        current = self._current
        if (
            current is None
            or current.queue is not queue
            or current.info.snapshot_id != info.snapshot_id
        ):
            return queue.upload_of(info)
        total = current.total_bytes or info.sizes.stored_bytes
        return Upload(queue.remote.name, UploadState.UPLOADING, current.done_bytes, total)

    def _tell(self, *snapshot_ids: str) -> None:
        for snapshot_id in snapshot_ids:
            info = self._here.get(snapshot_id)
            kernel_id = info.kernel_id if info else ""
            self._tell_others(SnapshotChange(snapshot_id, kernel_id, SnapshotChangeKind.CHANGED))


def _identity(path: Path) -> tuple[int, ...]:
    """Return what tells one writing of a file from another."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size
