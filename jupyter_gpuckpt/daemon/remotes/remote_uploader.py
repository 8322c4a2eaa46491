"""The uploads to one remote, one after the other. Each remote has its own threads: one that does not answer delays no other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from ...errors import ErrorRecord, GpuCkptError, OperationCancelled, SessionLost, error_from
from ...remote import upload_progress
from ...remote.listed_facts import Amendment, Told, title_of
from ...remote.remote_list import state_folder
from ...wire.manifest_records import SnapshotInfo
from ...wire.remote_records import Remote
from ...wire.snapshot_records import RemoteUploads, Upload, UploadState
from ..kernels.machine import Machine
from ..snapshots.local_snapshots import LocalSnapshots
from . import remote_keys
from .amending import Amended, LocalState
from .change_sender import ChangeSender
from .leases_at_remote import OnLost
from .notebook_facts import facts_of
from .sending import Sending
from .upload_queue import RemoteQueue, Uploaded, read_uploaded, record_path, write_uploaded

#: The interval at which an upload checks for work for which a user waits, and for which it pauses.
_LOOK_SECONDS = 0.2
#: The time until an unreadable store is read again.
_AGAIN_SECONDS = 5.0

_NOTHING: Mapping[str, Told] = MappingProxyType({})
_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")
#: A function that returns the snapshots of the suspended kernels of this store.
SuspendedAt = Callable[[], Awaitable[Collection[str]]]


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
    """The uploader to one remote in its current configuration; a changed remote gets a new one. On the event loop's thread.

    `is_busy`: whether work runs for which a user waits. `tell`: called with the id of a snapshot whose upload changed. `on_lost`: called
    in a thread when another machine has taken over the far session of an upload. `suspended_at`: returns the snapshots
    of suspended kernels.
    """

    def __init__(
        self,
        queue: RemoteQueue,
        machine: Machine,
        data_dir: Path,
        snapshots: LocalSnapshots,
        is_busy: Callable[[], bool],
        tell: Callable[[str], None],
        on_lost: OnLost,
        suspended_at: SuspendedAt,
    ) -> None:
        self.queue, self._snapshots = queue, snapshots
        self._machine, self._data_dir = machine, data_dir
        self._is_busy, self._tell, self._on_lost = is_busy, tell, on_lost
        self._current: _Current | None = None
        self._woken = asyncio.Event()
        # One thread uploads, the other pauses it.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="upload")
        # This thread may wait for the end of the running upload.
        self._records = ThreadPoolExecutor(1, thread_name_prefix="record")
        self._task: asyncio.Task[None] | None = None
        self._notes: set[asyncio.Task[None]] = set()
        self._changes = ChangeSender(data_dir, queue.remote.name)
        self._suspended_at = suspended_at
        #: The snapshots of suspended kernels at the last look.
        self._needed: Collection[str] = ()

    @property
    def remote(self) -> Remote:
        """Return the remote."""
        return self.queue.remote

    @property
    def any_pending(self) -> bool:
        """Return whether an upload runs, or may start soon."""
        return self._current is not None or self.queue.is_worth_waiting(self._snapshots.found)

    def start(self) -> None:
        """Start with the uploads that earlier daemons left."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop; another uploader, or the next daemon, continues."""
        if self._task is not None:
            self._task.cancel()
            if self._current is not None:
                self._current.sending.stop()
            await asyncio.wait({self._task})
        if self._notes:
            await asyncio.wait(self._notes)
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
        current, found = self._current, self._snapshots.found
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
        found, last_at = self._snapshots.found, self.queue.uploaded.last_at
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
        gone += [one for one in snapshot_ids if one in self._snapshots.stubs]
        self._note_change(gone, lambda known: known.without(gone))

    def note_listed(self, snapshot_ids: Collection[str]) -> None:
        """Record that the remote lists snapshots; some of them may have been recorded as gone."""
        if back := [one for one in snapshot_ids if one in self.queue.uploaded.gone]:
            self._note_change(back, lambda known: known.with_again(back))

    def ask(self, snapshot_ids: list[str]) -> None:
        """Upload snapshots before all others, also those that are gone from the remote. The next daemon continues with these."""
        self.queue.ask(snapshot_ids)
        self._note_change(snapshot_ids, lambda known: known.with_wanted(snapshot_ids))

    def _note_change(self, changed: list[str], change: Callable[[Uploaded], Uploaded]) -> None:
        self.queue.uploaded = change(self.queue.uploaded)
        self._note(self._put_on_record(change))
        for one in changed:
            self._tell(one)

    def _note(self, noting: Coroutine[Any, Any, None]) -> None:
        async def note() -> None:
            try:
                await noting
            except (GpuCkptError, OSError) as error:
                _log.warning("remote %s will be asked what it has: %s", self.remote.name, error)

        task = asyncio.get_running_loop().create_task(note())
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _put_on_record(
        self, change: Callable[[Uploaded], Uploaded], fetched: Mapping[str, Told] = _NOTHING
    ) -> None:
        """Change the record of what the remote has; `fetched` came from it. Raises RemoteNotFound, StoreError."""
        path = record_path(self._data_dir, self.remote.name)

        def put() -> None:
            with remote_keys.uploading(self._data_dir, self.remote):
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
                self._snapshots.is_stale = True  # the list is read again after a while
            except Exception:
                _log.exception("uploads to %s wait", self.remote.name)
                self._snapshots.is_stale = True
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_left()):
                    await self._woken.wait()

    def _seconds_left(self) -> float | None:
        is_stale = self._snapshots.is_stale
        return _AGAIN_SECONDS if is_stale else self.queue.seconds_left(self._snapshots.found)

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
        return self._is_busy() and not self.queue.hurries

    async def _look(self) -> dict[str, SnapshotInfo]:
        """Return the store's snapshots; queue interrupted uploads of snapshots that are gone, to be given up."""
        await self._snapshots.refresh()
        found, state = (
            self._snapshots.found,
            state_folder(self._data_dir, self.remote.name),
        )
        self.queue.forget_others(found)
        begun = await asyncio.to_thread(upload_progress.unfinished, state)
        self.queue.take_left(one for one in begun if one not in found)
        there, self._needed = self.queue.there(found), await self._suspended_at()

        def changes() -> list[Amendment]:
            local = self._local_state()
            self._changes.forget_deleted(there, local)
            return self._changes.changes(there, local)

        self.queue.amendments = await asyncio.to_thread(changes)
        return found

    def _local_state(self) -> LocalState:
        """Return the state of the store that is sent to the remote. Raises StoreError. In a thread."""
        machine = self._machine
        return LocalState.of(machine.store, self._needed, machine.finder_elsewhere())

    async def _upload(self, info: SnapshotInfo) -> None:
        name, snapshot_id = self.remote.name, info.snapshot_id
        loop = asyncio.get_running_loop()
        current = self._begin(snapshot_id)
        self._tell(snapshot_id)

        def progress(done: int, total: int) -> None:
            loop.call_soon_threadsafe(current.advance, done, total)

        run = partial(current.sending.run, self._machine.store, facts_of, progress)
        try:
            sent = await self._sent(current, run)
            local = self._snapshots.found
            if told_now := current.sending.told:
                said = {snapshot_id: told_now}
                await loop.run_in_executor(self._records, self._changes.note, said)
            await self._put_on_record(
                lambda known: known.and_now(snapshot_id, local, traffic=sent.traffic)
            )
        except OperationCancelled:
            return
        except SessionLost as error:
            # It is tried again at once, in the far session of the branch.
            used = current.sending.lease
            await asyncio.to_thread(self._on_lost, self.remote, info.kernel_id, used, error)
        except Exception as error:
            self._fail(snapshot_id, error)
        else:
            self.queue.succeeded(snapshot_id, self._snapshots.found, sent.traffic)
            size = sent.count_bytes / 1e6
            _log.info("uploaded snapshot %s to %s: %.1f MB", snapshot_id, name, size)
        finally:
            self._current = None
            self._tell(snapshot_id)

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
            self._snapshots.is_stale = True
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
        is_urgent = self.queue.hurries
        sending = Sending(self._data_dir, self.remote, snapshot_id, is_urgent=is_urgent)
        self._current = _Current(snapshot_id, sending)
        return self._current

    def _fail(self, snapshot_id: str, error: Exception) -> None:
        if not isinstance(error, GpuCkptError):
            _log.exception("snapshot %s was not uploaded", snapshot_id)
        name = self.remote.name
        _log.warning("snapshot %s was not uploaded to %s: %s", snapshot_id, name, error)
        self.queue.failed(snapshot_id, error)
        self._snapshots.is_stale = True  # the snapshot may be gone

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
