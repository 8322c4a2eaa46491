"""Background uploads of snapshots to remotes, one at a time per remote and the newest first. Work for which users wait comes first.

A file beside a remote's state records the snapshots that the remote has; all others are to be uploaded. So no upload is lost when
a daemon ends: the next one computes the difference. An otherwise unneeded daemon stays while uploads wait, because the machine may
be gone before the next daemon starts; if the remote cannot be reached, the daemon exits after an hour.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from pathlib import Path

from ...errors import ConfigurationError, FormatTooNew, StoreUnavailable
from ...remote.remote_list import Remotes
from ...store import manifests
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
from ..snapshots.inventory import Inventory
from ..snapshots.local_snapshots import LocalSnapshots
from .leases_at_remote import OnLost
from .remote_uploader import RemoteUploader
from .upload_queue import RemoteQueue, Uploaded, read_uploaded, record_path

_log = logging.getLogger(__name__)


class Uploads:
    """The uploads to all remotes. On the event loop's thread.

    `is_busy`: whether work runs for which a user waits. `tell`: called with the change of a snapshot whose uploads changed. `on_lost`:
    called in a thread when another machine has taken over the far session of an upload. `inventory`: lists what suspended kernels need.
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
        self._machine, self._data_dir = machine, data_dir
        self._is_busy, self._tell_others, self._on_lost = is_busy, tell, on_lost
        self._remotes, self._inventory = Remotes(data_dir), inventory
        #: The identity of the remotes' file when it was read last.
        self._known: object = None
        self._uploaders: dict[str, RemoteUploader] = {}
        #: The snapshots of this daemon's suspended kernels at the last look.
        self._suspended: set[str] = set()
        #: Tasks that close the uploaders of changed or removed remotes.
        self._closing: set[asyncio.Task[None]] = set()
        self._snapshots = LocalSnapshots(machine)
        self._one_at_a_time = asyncio.Lock()
        self._is_started = self._hurries = False

    @property
    def any_pending(self) -> bool:
        """Return whether an upload runs, or may start soon."""
        return any(uploader.any_pending for uploader in self._uploaders.values())

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
        await asyncio.gather(
            *(uploader.close() for uploader in self._uploaders.values()), *self._closing
        )

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
            lambda: {
                one.name: read_uploaded(record_path(self._data_dir, one.name)) for one in found
            }
        )
        self._take(found, uploaded)

    def _look_at_kernels(self) -> None:
        """Wake the uploaders if suspended kernels need other snapshots now, because that is sent to remotes."""
        suspended = self._inventory.suspended_here()
        if suspended != self._suspended:
            self._suspended = suspended
            self._wake()

    def on_snapshot(self, change: SnapshotChange) -> None:
        """Handle a snapshot that was added, removed or made a stub."""
        if change.change is SnapshotChangeKind.REMOVED:
            for uploader in self._uploaders.values():
                uploader.stop(change.snapshot_id)
        self._snapshots.is_stale = True
        self._wake()

    def wake(self) -> None:
        """Let the uploaders look again for changes to send."""
        self._snapshots.is_stale = True
        self._wake()

    def of(self, info: SnapshotInfo) -> list[Upload]:
        """Return the states of a snapshot's uploads."""
        found = [uploader.upload_of(info) for uploader in self._uploaders.values()]
        return [one for one in found if one is not None]

    def has(self, snapshot_id: str) -> bool:
        """Return whether a remote has a snapshot."""
        info = self._snapshots.found.get(snapshot_id)
        return info is not None and any(
            upload.state is UploadState.UPLOADED for upload in self.of(info)
        )

    def upload_to(self, remote: str, snapshot_id: str) -> Upload | None:
        """Return the state of a snapshot's upload to one remote; None if the remote or the snapshot was removed."""
        info, uploader = self._snapshots.found.get(snapshot_id), self._uploaders.get(remote)
        return uploader.upload_of(info) if uploader is not None and info is not None else None

    def newest_uploaded(self, kernel_id: str) -> SnapshotInfo | None:
        """Return the newest snapshot of a kernel that a remote has; None if there is none."""
        found = self._snapshots.found.values()
        return next(
            (i for i in found if i.kernel_id == kernel_id and self.has(i.snapshot_id)), None
        )

    def progress_of(self, snapshot_id: str) -> Upload | None:
        """Return the most advanced of a snapshot's uploads; None if the snapshot is in no list."""
        info = self._snapshots.found.get(snapshot_id)
        return max(self.of(info) if info else [], key=lambda one: one.done_bytes, default=None)

    async def by_remote(self) -> dict[str, dict[str, tuple[SnapshotInfo, bool]]]:
        """Return the snapshots that remotes have or will get, by remote name and snapshot id; True: the remote has it."""
        await self.look()
        if self._uploaders:
            await self._snapshots.refresh()
        found: dict[str, dict[str, tuple[SnapshotInfo, bool]]] = {
            one: {} for one in self._uploaders
        }
        for snapshot_id, info in self._snapshots.found.items():
            for name, uploader in self._uploaders.items():
                if upload := uploader.upload_of(info):
                    found[name][snapshot_id] = (info, upload.state is UploadState.UPLOADED)
        return found

    async def views(self) -> list[RemoteUploads]:
        """Return the state of uploads to every remote; no request goes to a remote."""
        await self.look()
        if self._uploaders:
            await self._snapshots.refresh()
        return [uploader.view() for uploader in self._uploaders.values()]

    async def ask(self, request: UploadRequest) -> None:
        """Upload snapshots before all others. Raises RemoteNotFound, SnapshotNotFound, SnapshotFar."""
        await self.look()
        uploader = await self._uploader(request.remote)
        self._snapshots.is_stale = True
        await self._snapshots.refresh()
        for snapshot_id in request.snapshot_ids:
            if snapshot_id not in self._snapshots.found:
                raise manifests.not_found(snapshot_id)
            await asyncio.to_thread(self._machine.store.stubs.require_here, snapshot_id)
        # The uploader is looked up again, because the remote may have been changed meanwhile.
        uploader = await self._uploader(request.remote)
        uploader.ask(request.snapshot_ids)
        uploader.wake()

    async def note_there(self, name: str, snapshot_id: str) -> None:
        """Record that a snapshot was fetched from a remote, so that the remote need not be asked for it. Raises StoreError."""
        await self.look()
        self._snapshots.is_stale = True
        if self._uploaders:
            await self._snapshots.refresh()
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
            await self._snapshots.refresh()
        return [
            (one.remote, one.queue.recorded(self._snapshots.found))
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
                    RemoteQueue(remote, uploaded[remote.name], self._snapshots.stubs)
                )
            elif uploader.remote != remote:
                self._close(uploader)
                uploader = self._new_uploader(
                    uploader.queue.taken_over(remote, uploaded[remote.name])
                )
            self._uploaders[remote.name] = uploader
        for uploader in before.values():
            self._close(uploader)
        self._snapshots.is_stale = True
        self._wake()

    def _new_uploader(self, queue: RemoteQueue) -> RemoteUploader:
        uploader = RemoteUploader(
            queue,
            self._machine,
            self._data_dir,
            self._snapshots,
            self._is_busy,
            self._tell,
            self._on_lost,
            self._inventory.suspended_at,
        )
        uploader.hurry(on=self._hurries)
        if self._is_started:
            uploader.start()
        return uploader

    def _close(self, uploader: RemoteUploader) -> None:
        task = asyncio.get_running_loop().create_task(uploader.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _wake(self) -> None:
        for uploader in self._uploaders.values():
            uploader.wake()

    def _tell(self, snapshot_id: str) -> None:
        info = self._snapshots.found.get(snapshot_id)
        kernel_id = info.kernel_id if info else ""
        self._tell_others(SnapshotChange(snapshot_id, kernel_id, SnapshotChangeKind.CHANGED))


def _identity(path: Path) -> tuple[int, ...]:
    """Return values that change whenever the file is written."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size
