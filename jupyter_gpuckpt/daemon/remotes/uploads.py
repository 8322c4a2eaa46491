"""Background uploads of snapshots to remotes, one at a time per remote and the newest first. Work for which users wait comes first.

A file beside a remote's state records the snapshots that the remote has; all others are to be uploaded. So no upload is lost when
a daemon ends: the next one computes the difference. An otherwise unneeded daemon stays while uploads wait, because the machine may
be gone before the next daemon starts; if the remote cannot be reached, the daemon exits after an hour.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from ...errors import (
    ConfigurationError,
    ErrorRecord,
    FormatTooNew,
    GpuCkptError,
    OperationCancelled,
    SessionLost,
    StoreUnavailable,
    error_from,
)
from ...remote import upload_progress
from ...remote.listed_facts import Amendment, Told, title_of
from ...remote.remote_list import Remotes, state_folder
from ...store import manifests
from ...store.stub_files import Stub
from ...wire.manifest_records import SnapshotInfo
from ...wire.remote_records import Remote
from ...wire.snapshot_records import (
    RemoteUploads,
    SnapshotChange,
    SnapshotChangeKind,
    Upload,
    UploadRequest,
    UploadState,
)
from ..kernels.machine import Machine
from ..repeating import Tasks
from ..snapshots.inventory import Inventory
from . import remote_keys
from .amending import Amended, LocalState
from .change_sender import ChangeSender
from .leases import LeaseFile, OnLost
from .sending import Sending
from .upload_queue import RemoteQueue, Uploaded, read_uploaded, record_path, write_uploaded

#: The interval at which an upload checks for work for which a user waits, and for which it pauses.
_LOOK_SECONDS = 0.2
#: The time until an unreadable store is read again.
_AGAIN_SECONDS = 5.0

_log = logging.getLogger(__name__)

_NOTHING: Mapping[str, Told] = MappingProxyType({})
_Result = TypeVar("_Result")


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


class _Current(msgspec.Struct):
    """The running upload, or the one that is being given up."""

    snapshot_id: str
    sending: Sending
    done_bytes: int = 0
    total_bytes: int = 0
    #: The remote's current error; None if it works.
    trouble: ErrorRecord | None = None

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        self.done_bytes, self.total_bytes = done_bytes, total_bytes

    def be_in_trouble(self, error: ErrorRecord | None) -> None:
        self.trouble = error


class RemoteUploader:
    """The uploader to one remote in its current configuration, one snapshot after the other. On the event loop's thread.

    A changed remote gets a new one. Each has its own threads, so a remote that does not answer delays no other.
    """

    def __init__(self, uploads: Uploads, queue: RemoteQueue) -> None:
        self._uploads, self.queue = uploads, queue
        self._current: _Current | None = None
        self._woken = asyncio.Event()
        # One thread uploads, the other pauses it.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="upload")
        # This thread may wait for the end of the running upload.
        self._records = ThreadPoolExecutor(1, thread_name_prefix="record")
        self._tasks, self._notes = Tasks(), Tasks()
        self._changes = ChangeSender(uploads.data_dir, queue.remote.name)
        #: The snapshots of suspended kernels at the last look.
        self._needed: Collection[str] = ()

    @property
    def remote(self) -> Remote:
        """Return the remote."""
        return self.queue.remote

    @property
    def any_pending(self) -> bool:
        """Return whether an upload runs, or may start soon."""
        return self._current is not None or self.queue.is_worth_waiting(
            self._uploads.snapshots.found
        )

    @property
    def uploading(self) -> str:
        """Return the snapshot that is being uploaded; empty if there is none."""
        return self._current.snapshot_id if self._current is not None else ""

    def start(self) -> None:
        """Start with the uploads that earlier daemons left."""
        self._tasks.start(self._run())

    async def close(self) -> None:
        """Stop; another uploader, or the next daemon, continues."""
        if self._current is not None:
            self._current.sending.stop()
        await self._tasks.cancel()
        await self._notes.wait()
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._records.shutdown)

    def wake(self) -> None:
        """Check again for work."""
        self._woken.set()

    def hurry(self, *, on: bool) -> None:
        """Upload at full rate, because this machine will go (`on`), or as usual. With `on` a running upload is started again."""
        self.queue.hurry(on=on)
        if on and self._current is not None:
            self._current.sending.stop()
        self.wake()

    def stop(self, snapshot_id: str) -> None:
        """Stop uploading a snapshot that is gone."""
        if self._current is not None and self._current.snapshot_id == snapshot_id:
            self._current.sending.stop()

    def view(self) -> RemoteUploads:
        """Return the state of uploads to the remote."""
        current, found = self._current, self._uploads.snapshots.found
        uploading = current.snapshot_id if current and current.snapshot_id in found else ""
        view = self.queue.view(found, uploading, current.trouble if current else None)
        return msgspec.structs.replace(view, deletions=self._changes.deletions)

    def upload_of(self, info: SnapshotInfo) -> Upload | None:
        """Return the state of a snapshot's upload to the remote; None if it will not be uploaded there."""
        current = self._current
        if current is None or current.snapshot_id != info.snapshot_id:
            return self.queue.upload_of(info)
        total = current.total_bytes or info.sizes.stored_bytes
        return Upload(self.remote.name, UploadState.UPLOADING, current.done_bytes, total)

    def note_there(self, snapshot_id: str) -> None:
        """Record that a snapshot was fetched from the remote.

        The file is written in the background: a running upload may have to end first, and waiting for that here could deadlock.
        """
        found, last_at = self._uploads.snapshots.found, self.queue.uploaded.last_at
        info = found.get(snapshot_id)

        def change(known: Uploaded) -> Uploaded:
            return known.and_now(snapshot_id, found, last_at=last_at)

        self.queue.uploaded = change(self.queue.uploaded)
        # A pin or title that the snapshot already has here is still sent. If it has none here, nothing is undone in the remote.
        told = Told(title=title_of(info)) if info else None
        self._note(self._put_on_record(change, {snapshot_id: told} if told else {}))

    def note_gone(self, snapshot_ids: Collection[str]) -> None:
        """Record that the remote does not list snapshots any more: another machine pruned or erased them."""
        gone = [one for one in snapshot_ids if one in self.queue.uploaded.snapshots]
        gone += [one for one in snapshot_ids if one in self._uploads.snapshots.stubs]
        self._note_change(gone, lambda known: known.without(gone))

    def note_listed(self, snapshot_ids: Collection[str]) -> None:
        """Record that the remote lists snapshots; some of them may have been recorded as gone."""
        if back := [one for one in snapshot_ids if one in self.queue.uploaded.gone]:
            self._note_change(back, lambda known: known.with_again(back))

    def ask(self, snapshot_ids: list[str]) -> None:
        """Upload snapshots before all others, also those that are gone from the remote. The next daemon continues with these.

        An upload in the background, which has the lowest priority, makes room; it continues later, or now if it is one of these.
        """
        self.queue.ask(snapshot_ids)
        if self._current is not None and not self._current.sending.is_awaited:
            self._current.sending.stop()
        self._note_change(snapshot_ids, lambda known: known.with_wanted(snapshot_ids))

    def _note_change(self, changed: list[str], change: Callable[[Uploaded], Uploaded]) -> None:
        self.queue.uploaded = change(self.queue.uploaded)
        self._note(self._put_on_record(change))
        for one in changed:
            self._uploads.tell(one)

    def _note(self, noting: Coroutine[Any, Any, None]) -> None:
        async def note() -> None:
            try:
                await noting
            except (GpuCkptError, OSError) as error:
                _log.warning("remote %s will be asked what it has: %s", self.remote.name, error)

        self._notes.start(note())

    async def _put_on_record(
        self, change: Callable[[Uploaded], Uploaded], fetched: Mapping[str, Told] = _NOTHING
    ) -> None:
        """Change the record of what the remote has; `fetched` came from it. Raises RemoteNotFound, StoreError."""
        path = record_path(self._uploads.data_dir, self.remote.name)

        def put() -> None:
            with remote_keys.uploading(self._uploads.data_dir, self.remote):
                self._changes.note(fetched, new_only=True)
                # The record is read again, because this may have waited for long.
                write_uploaded(path, change(read_uploaded(path)))

        await asyncio.get_running_loop().run_in_executor(self._records, put)

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                if await self._do_next():
                    continue
            except GpuCkptError as error:
                _log.warning("uploads to %s wait: %s", self.remote.name, error)
                self._uploads.snapshots.is_stale = True  # the list is read again after a while
            except Exception:
                _log.exception("uploads to %s wait", self.remote.name)
                self._uploads.snapshots.is_stale = True
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_left()):
                    await self._woken.wait()

    def _seconds_left(self) -> float | None:
        is_stale = self._uploads.snapshots.is_stale
        return (
            _AGAIN_SECONDS if is_stale else self.queue.seconds_left(self._uploads.snapshots.found)
        )

    async def _do_next(self) -> bool:
        """Do the next task; return False if there was none."""
        found = await self._look()
        if not (self.queue.amends(found) or self.queue.next(found)):
            return False
        while self._must_wait():  # noqa: ASYNC110 - there is no notification of an operation's end
            await asyncio.sleep(_LOOK_SECONDS)
        found = await self._look()  # the store may have changed meanwhile
        if self.queue.amends(found):
            return await self._amend(found)
        snapshot_id = self.queue.next(found)
        if snapshot_id in found:
            await self._upload(found[snapshot_id])
        elif snapshot_id:
            await self._give_up(snapshot_id)
        return True

    def _must_wait(self) -> bool:
        return self._uploads.is_busy() and not self.queue.hurries

    async def _look(self) -> dict[str, SnapshotInfo]:
        """Return the store's snapshots; queue interrupted uploads of snapshots that are gone, to be given up."""
        await self._uploads.snapshots.refresh()
        found, state = (
            self._uploads.snapshots.found,
            state_folder(self._uploads.data_dir, self.remote.name),
        )
        self.queue.forget_others(found)
        begun = await asyncio.to_thread(upload_progress.unfinished, state)
        self.queue.take_left(one for one in begun if one not in found)
        there, self._needed = self.queue.there(found), await self._uploads.inventory.suspended_at()

        def changes() -> list[Amendment]:
            local = self._local_state()
            self._changes.forget_deleted(there, local)
            return self._changes.changes(there, local)

        self.queue.amendments = await asyncio.to_thread(changes)
        return found

    def _local_state(self) -> LocalState:
        """Return the state of the store that is sent to the remote. Raises StoreError. In a thread."""
        machine = self._uploads.machine
        return LocalState.of(machine.store, self._needed, machine.finder_elsewhere())

    async def _upload(self, info: SnapshotInfo) -> None:
        name, snapshot_id = self.remote.name, info.snapshot_id
        loop = asyncio.get_running_loop()
        current = self._begin(snapshot_id)
        self._uploads.tell(snapshot_id)

        def progress(done: int, total: int) -> None:
            loop.call_soon_threadsafe(current.advance, done, total)

        try:
            file = LeaseFile(state_folder(self._uploads.data_dir, name))
            used, session_id, tenure, term = await asyncio.to_thread(file.to_upload, info)
            run = partial(
                current.sending.run,
                self._uploads.machine.store,
                progress,
                session_id=session_id,
                tenure=tenure,
                term=term,
            )
            sent = await self._sent(current, run)
            local = self._uploads.snapshots.found
            if told_now := current.sending.told:
                said = {snapshot_id: told_now}
                await loop.run_in_executor(self._records, self._changes.note, said)
            await self._put_on_record(
                lambda known: known.and_now(snapshot_id, local, traffic=sent.traffic)
            )
        except OperationCancelled:
            return
        except SessionLost as error:
            # It is tried again at once, in the remote session of the branch.
            await asyncio.to_thread(self._uploads.on_lost, self.remote, info.kernel_id, used, error)
        except Exception as error:
            self._fail(snapshot_id, error)
        else:
            self.queue.succeeded(snapshot_id, self._uploads.snapshots.found, sent.traffic)
            size = sent.count_bytes / 1e6
            _log.info("uploaded snapshot %s to %s: %.1f MB", snapshot_id, name, size)
        finally:
            self._current = None
            self._uploads.tell(snapshot_id)

    async def _give_up(self, snapshot_id: str) -> None:
        """Remove the objects of an upload whose snapshot was deleted meanwhile."""
        current = self._begin(snapshot_id)
        try:
            await self._sent(current, current.sending.give_up)
        except OperationCancelled:
            return
        except Exception as error:
            self._fail(snapshot_id, error)
        else:
            self.queue.gave_up(snapshot_id)
            _log.info("gave up the upload of %s to %s", snapshot_id, self.remote.name)
        finally:
            self._current = None

    async def _amend(self, found: dict[str, SnapshotInfo]) -> bool:
        """Send the changes of snapshots to the remote; return False if another task has the lock for that."""
        there, changes = self.queue.there(found), self.queue.amendments
        current = self._begin("")

        def work(trouble: Callable[[ErrorRecord | None], None]) -> Amended | None:
            send = partial(current.sending.amend, trouble=trouble)
            return self._changes.tell(there, self._local_state, send)

        try:
            done = await self._sent(current, work)
        except OperationCancelled:
            return True
        except Exception as error:
            _log.warning("changes could not be sent to %s: %s", self.remote.name, error)
            if not self.queue.amending_failed(error):
                await asyncio.to_thread(self._changes.refuse, changes, str(error))
            return True
        finally:
            self._current = None
            self._uploads.snapshots.is_stale = True
        if done is None:
            return False
        if done.error:
            self.queue.amending_failed(error_from(done.error))
        else:
            self.queue.told()
        if done.gone:
            names = ", ".join(done.gone)
            _log.info("%s no longer has these snapshots: %s", self.remote.name, names)
            self.note_gone(done.gone)
        return True

    def _begin(self, snapshot_id: str) -> _Current:
        sending = Sending(
            self._uploads.data_dir,
            self.remote,
            snapshot_id,
            is_urgent=self.queue.hurries,
            is_awaited=snapshot_id in self.queue.asked,
        )
        self._current = _Current(snapshot_id, sending)
        return self._current

    def _fail(self, snapshot_id: str, error: Exception) -> None:
        if not isinstance(error, GpuCkptError):
            _log.exception("snapshot %s was not uploaded", snapshot_id)
        name = self.remote.name
        _log.warning("snapshot %s was not uploaded to %s: %s", snapshot_id, name, error)
        self.queue.failed(snapshot_id, error)
        self._uploads.snapshots.is_stale = True  # the snapshot may be gone

    async def _sent(
        self, current: _Current, work: Callable[[Callable[[ErrorRecord | None], None]], _Result]
    ) -> _Result:
        """Wait until the process has done its work; pause it while work runs for which a user waits."""
        loop = asyncio.get_running_loop()

        def trouble(error: ErrorRecord | None) -> None:
            loop.call_soon_threadsafe(current.be_in_trouble, error)

        running = loop.run_in_executor(self._threads, partial(work, trouble))
        try:
            while not running.done():
                hold = partial(current.sending.hold, on=self._must_wait())
                await loop.run_in_executor(self._threads, hold)
                await asyncio.wait({running}, timeout=_LOOK_SECONDS)
        finally:
            if not running.done():  # the daemon exits
                current.sending.stop()
        return running.result()


class Uploads:
    """The uploads to all remotes. On the event loop's thread.

    `is_busy`: whether work runs for which a user waits. `tell`: called with the change of a snapshot whose uploads changed. `on_lost`:
    called in a thread when another machine has taken over the remote session of an upload. `inventory`: lists what suspended kernels need.
    """

    def __init__(
        self,
        machine: Machine,
        data_dir: Path,
        is_busy: Callable[[], bool],
        tell: Callable[[SnapshotChange], None],
        on_lost: OnLost,
        inventory: Inventory,
    ) -> None:
        self.machine, self.data_dir = machine, data_dir
        self.is_busy, self._tell_others, self.on_lost = is_busy, tell, on_lost
        self._remotes, self.inventory = Remotes(data_dir), inventory
        #: The identity of the remotes' file when it was read last.
        self._known: object = None
        self._uploaders: dict[str, RemoteUploader] = {}
        #: The snapshots of this daemon's suspended kernels at the last look.
        self._suspended: set[str] = set()
        #: Tasks that close the uploaders of changed or removed remotes.
        self._closing = Tasks()
        self.snapshots = LocalSnapshots(machine)
        self._one_at_a_time = asyncio.Lock()
        self._is_started = self._hurries = False

    @property
    def any_pending(self) -> bool:
        """Return whether an upload runs, or may start soon."""
        return any(uploader.any_pending for uploader in self._uploaders.values())

    @property
    def uploading(self) -> set[str]:
        """Return the snapshots that are being uploaded."""
        return {one.uploading for one in self._uploaders.values()} - {""}

    @property
    def is_anywhere(self) -> bool:
        """Return whether there is a remote to which snapshots are uploaded automatically."""
        remotes = [uploader.remote for uploader in self._uploaders.values()]
        return any(remote.automatic and not remote.paused for remote in remotes)

    def hurry(self, *, on: bool) -> None:
        """Upload at full rate and beside all other work, because this machine goes (`on`), or as usual."""
        if on == self._hurries:
            return
        self._hurries = on
        for uploader in self._uploaders.values():
            uploader.hurry(on=on)

    async def start(self) -> None:
        """Start with the uploads that earlier daemons left."""
        await self.look()
        self._is_started = True
        for uploader in self._uploaders.values():
            uploader.start()

    async def close(self) -> None:
        """Stop the uploads; the next daemon continues."""
        await asyncio.gather(*(uploader.close() for uploader in self._uploaders.values()))
        await self._closing.wait()

    async def look(self) -> None:
        """Apply added, changed and removed remotes. Never raises, so that the caller's loop continues."""
        async with self._one_at_a_time:
            try:
                await self._look()
                self._look_at_kernels()
            except (ConfigurationError, FormatTooNew) as error:
                _log.warning("remotes are used as they were: %s", error)
            except StoreUnavailable as error:
                self._known = None
                _log.warning("remotes are used as they were: %s", error)
            except asyncio.CancelledError:
                self._known = None  # its caller waits no longer; what was read is not applied
                raise
            except Exception:
                _log.exception("remotes are used as they were")

    async def _look(self) -> None:
        known = await asyncio.to_thread(_identity, self._remotes.path)
        if known == self._known:
            return
        self._known = known
        found = await asyncio.to_thread(self._remotes.all)
        uploaded = await asyncio.to_thread(
            lambda: {one.name: read_uploaded(record_path(self.data_dir, one.name)) for one in found}
        )
        self._take(found, uploaded)

    def _look_at_kernels(self) -> None:
        """Wake the uploaders if suspended kernels need other snapshots now, because that is sent to remotes."""
        suspended = self.inventory.suspended_here()
        if suspended != self._suspended:
            self._suspended = suspended
            self._wake()

    def on_snapshot(self, change: SnapshotChange) -> None:
        """Handle a snapshot that was added, removed or made a stub."""
        if change.change is SnapshotChangeKind.REMOVED:
            for uploader in self._uploaders.values():
                uploader.stop(change.snapshot_id)
        self.snapshots.is_stale = True
        self._wake()

    def wake(self) -> None:
        """Let the uploaders look again for changes to send."""
        self.snapshots.is_stale = True
        self._wake()

    def of(self, info: SnapshotInfo) -> list[Upload]:
        """Return the states of a snapshot's uploads."""
        found = [uploader.upload_of(info) for uploader in self._uploaders.values()]
        return [one for one in found if one is not None]

    def has(self, snapshot_id: str) -> bool:
        """Return whether a remote has a snapshot."""
        info = self.snapshots.found.get(snapshot_id)
        return info is not None and any(
            upload.state is UploadState.UPLOADED for upload in self.of(info)
        )

    def upload_to(self, remote: str, snapshot_id: str) -> Upload | None:
        """Return the state of a snapshot's upload to one remote; None if the remote or the snapshot was removed."""
        info, uploader = self.snapshots.found.get(snapshot_id), self._uploaders.get(remote)
        return uploader.upload_of(info) if uploader is not None and info is not None else None

    def newest_uploaded(self, kernel_id: str) -> SnapshotInfo | None:
        """Return the newest snapshot of a kernel that a remote has; None if there is none."""
        found = self.snapshots.found.values()
        return next(
            (i for i in found if i.kernel_id == kernel_id and self.has(i.snapshot_id)), None
        )

    def progress_of(self, snapshot_id: str) -> Upload | None:
        """Return the most advanced of a snapshot's uploads; None if the snapshot is in no list."""
        info = self.snapshots.found.get(snapshot_id)
        return max(self.of(info) if info else [], key=lambda one: one.done_bytes, default=None)

    async def by_remote(self) -> dict[str, dict[str, tuple[SnapshotInfo, bool]]]:
        """Return the snapshots that remotes have or will get, by remote name and snapshot id; True: the remote has it."""
        await self.look()
        if self._uploaders:
            await self.snapshots.refresh()
        found: dict[str, dict[str, tuple[SnapshotInfo, bool]]] = {
            one: {} for one in self._uploaders
        }
        for snapshot_id, info in self.snapshots.found.items():
            for name, uploader in self._uploaders.items():
                if upload := uploader.upload_of(info):
                    found[name][snapshot_id] = (info, upload.state is UploadState.UPLOADED)
        return found

    async def views(self) -> list[RemoteUploads]:
        """Return the state of uploads to every remote; no request goes to a remote."""
        await self.look()
        if self._uploaders:
            await self.snapshots.refresh()
        return [uploader.view() for uploader in self._uploaders.values()]

    async def ask(self, request: UploadRequest) -> None:
        """Upload snapshots before all others. Raises RemoteNotFound, SnapshotNotFound, SnapshotInRemoteOnly."""
        await self.look()
        uploader = await self._uploader(request.remote)
        self.snapshots.is_stale = True
        await self.snapshots.refresh()
        for snapshot_id in request.snapshot_ids:
            if snapshot_id not in self.snapshots.found:
                raise manifests.not_found(snapshot_id)
            await asyncio.to_thread(self.machine.store.stubs.require_here, snapshot_id)
        # The uploader is looked up again, because the remote may have been changed meanwhile.
        uploader = await self._uploader(request.remote)
        uploader.ask(request.snapshot_ids)
        uploader.wake()

    async def note_there(self, name: str, snapshot_id: str) -> None:
        """Record that a snapshot was fetched from a remote, so that the remote need not be asked for it. Raises StoreError."""
        await self.look()
        self.snapshots.is_stale = True
        if self._uploaders:
            await self.snapshots.refresh()
        if uploader := self._uploaders.get(name):
            uploader.note_there(snapshot_id)

    async def note_gone(self, name: str, snapshot_ids: Collection[str]) -> None:
        """Record that a remote no longer lists snapshots that it had, so that they are uploaded again only on request."""
        await self.look()
        if uploader := self._uploaders.get(name):
            uploader.note_gone(snapshot_ids)

    async def note_listed(self, name: str, snapshot_ids: Collection[str]) -> None:
        """Record that a remote lists snapshots; some of them may have been recorded as gone."""
        if uploader := self._uploaders.get(name):
            uploader.note_listed(snapshot_ids)

    async def recorded(self) -> list[tuple[Remote, list[SnapshotInfo]]]:
        """Return, for each remote, the snapshots that it has or had according to the record. Raises StoreError."""
        await self.look()
        if self._uploaders:
            await self.snapshots.refresh()
        return [
            (one.remote, one.queue.recorded(self.snapshots.found))
            for one in self._uploaders.values()
        ]

    async def _uploader(self, name: str) -> RemoteUploader:
        """Return the uploads to a remote. Raises RemoteNotFound."""
        if uploader := self._uploaders.get(name):
            return uploader
        await asyncio.to_thread(self._remotes.get, name)
        raise StoreUnavailable(f"Remote {name} was added just now.", hint="Try again.")

    def _take(self, found: list[Remote], uploaded: dict[str, Uploaded]) -> None:
        before, self._uploaders = self._uploaders, {}
        for remote in found:
            uploader = before.pop(remote.name, None)
            if uploader is None:
                uploader = self._new_uploader(
                    RemoteQueue(remote, uploaded[remote.name], self.snapshots.stubs)
                )
            elif uploader.remote != remote:
                self._closing.start(uploader.close())
                uploader = self._new_uploader(
                    uploader.queue.taken_over(remote, uploaded[remote.name])
                )
            self._uploaders[remote.name] = uploader
        for uploader in before.values():
            self._closing.start(uploader.close())
        self.snapshots.is_stale = True
        self._wake()

    def _new_uploader(self, queue: RemoteQueue) -> RemoteUploader:
        uploader = RemoteUploader(self, queue)
        uploader.hurry(on=self._hurries)
        if self._is_started:
            uploader.start()
        return uploader

    def _wake(self) -> None:
        for uploader in self._uploaders.values():
            uploader.wake()

    def tell(self, snapshot_id: str) -> None:
        """Tell others that a snapshot's uploads changed."""
        info = self.snapshots.found.get(snapshot_id)
        kernel_id = info.kernel_id if info else ""
        self._tell_others(SnapshotChange(snapshot_id, kernel_id, SnapshotChangeKind.CHANGED))


def _identity(path: Path) -> tuple[int, ...]:
    """Return values that change whenever the file is written."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size
