"""The near copy: the choice of snapshots whose chunks stay on this disk although remotes have them, too.

Beyond a limit the least recently used snapshots become stubs (`store/stubs.py`). A snapshot may become one if every remote to which it
is uploaded has it; the remote is asked again, because the local record may be outdated. None of this is urgent, so it waits while
an operation runs, and until something has changed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...engine.tree import kept_secrets
from ...errors import (
    AccessDenied,
    GpuCkptError,
    OperationCancelled,
    SnapshotNotFound,
    StoreUnavailable,
)
from ...linux.file_locks import alone_at_once, eviction
from ...remote.remote_list import Remotes
from ...remote.retries import Retries
from ...store import retention
from ...store.faults import store_errors
from ...store.stub_files import Stub
from ...wire.manifest_records import SnapshotInfo
from ...wire.plurals import counted
from ...wire.snapshot_records import SnapshotChange, SnapshotChangeKind, UploadState
from ..kernels.machine import Machine
from ..repeating import Tasks
from ..snapshots.inventory import Inventory, needed_ids
from . import remote_copies, remote_keys
from .change_sender import telling_lock
from .remote_keys import Opened
from .uploads import Uploads

#: The polling interval while an operation runs.
_LOOK_SECONDS = 0.2
#: The time until a remote is asked again that did not answer or lacked a snapshot.
_AGAIN_SECONDS = 300.0
#: The time until a remote is tried again while another task or daemon works on its snapshots.
_SOON_SECONDS = 2.0

_log = logging.getLogger(__name__)


class _Candidate(NamedTuple):
    """A snapshot that may become a stub, and the remotes that have it according to their records."""

    info: SnapshotInfo
    remotes: list[str]


class NearCopy:
    """A background task that enforces the limit `near_bytes` (0: none). `is_busy`: whether work runs for which a user waits."""

    def __init__(
        self,
        near_bytes: int,
        data_dir: Path,
        machine: Machine,
        inventory: Inventory,
        uploads: Uploads,
        is_busy: Callable[[], bool],
    ) -> None:
        self._near_bytes, self._data_dir, self._machine = near_bytes, data_dir, machine
        self._inventory, self._uploads, self._is_busy = inventory, uploads, is_busy
        #: Whether chunks of stubs may still be on the disk: an earlier daemon may have been killed before it removed them.
        self._is_uncollected = True
        #: Whether a lock that another task or daemon held prevented a snapshot from becoming a stub.
        self._is_blocked = False
        self._woken = asyncio.Event()
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="near copy")
        self._tasks = Tasks()

    def start(self) -> None:
        """Start enforcing the limit, if there is one."""
        if self._near_bytes:
            self._tasks.start(self._run())

    def wake(self) -> None:
        """Check again soon, because snapshots or their uploads have changed."""
        self._woken.set()

    async def close(self) -> None:
        """Stop enforcing the limit; the next daemon continues."""
        self._stop.set()
        await self._tasks.cancel()
        await asyncio.to_thread(self._thread.shutdown)

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            is_done = self._is_blocked = False
            try:
                while self._is_busy():  # noqa: ASYNC110 - there is no notification of an operation's end
                    await asyncio.sleep(_LOOK_SECONDS)
                is_done = await self.look()
            except GpuCkptError as error:
                _log.warning("snapshots stay on this disk for now: %s", error)
            except Exception:
                _log.exception("snapshots stay on this disk for now")
            with suppress(TimeoutError):
                again = _SOON_SECONDS if self._is_blocked else _AGAIN_SECONDS
                async with asyncio.timeout(None if is_done else again):
                    await self._woken.wait()

    async def look(self) -> bool:
        """Make stubs of snapshots beyond the limit; return False if one of them could not become a stub."""
        await self._uploads.look()
        records, infos = await self._inventory.look()
        found = {info.snapshot_id: self._remotes_of(info) for info in infos}
        if not any(found.values()):
            return True
        needed = set(needed_ids(records, infos))
        candidates = [_Candidate(info, found[info.snapshot_id]) for info in infos]
        loop = asyncio.get_running_loop()
        gone: list[tuple[str, str]] = []
        try:
            return await loop.run_in_executor(self._thread, self._keep, candidates, needed, gone)
        finally:
            for name, snapshot_id in gone:
                await self._uploads.note_gone(name, [snapshot_id])

    def _remotes_of(self, info: SnapshotInfo) -> list[str]:
        """Return the remotes that have a snapshot; none while an upload of it is pending."""
        uploads = self._uploads.of(info)
        whole = all(one.state is UploadState.UPLOADED for one in uploads)
        return [one.remote for one in uploads] if whole else []

    def _keep(
        self,
        snapshots: list[_Candidate],
        needed: set[str],
        not_there: list[tuple[str, str]],
    ) -> bool:
        """Make stubs of snapshots; return whether all could become one. `not_there` gets those that a remote does not list any more."""
        store = self._machine.store
        stubs, uses = store.stubs.all(), store.stubs.last_uses()
        whole = {
            one.info.snapshot_id: one for one in snapshots if one.info.snapshot_id not in stubs
        }
        # Snapshots that suspended kernels need become stubs last.
        order = sorted(
            whole.values(),
            key=lambda one: (one.info.snapshot_id in needed, uses.get(one.info.snapshot_id, 0.0)),
            reverse=True,
        )
        held = {name for name, one in whole.items() if one.info.pinned or not one.remotes}
        infos = [one.info for one in order]
        over = retention.over_budget(infos, held, self._near_bytes, store.weights())
        wanted = [one for one in reversed(order) if one.info.snapshot_id in over]
        gone = self._evict(wanted, not_there)
        if gone or (self._is_uncollected and stubs):
            self._is_uncollected = True
            freed = store.collect()
            _log.info(
                "moved %s to remotes only; %d bytes were freed", counted(gone, "snapshot"), freed
            )
        self._is_uncollected = False
        return gone == len(over)

    def _evict(self, wanted: list[_Candidate], not_there: list[tuple[str, str]]) -> int:
        """Make stubs of these snapshots if remotes confirm that they have them; return the number of stubs made."""
        asked: dict[str, Opened | None] = {}
        count = 0
        for one in wanted:
            for name in one.remotes:
                if self._is_evicted(one.info, name, asked, not_there):
                    count += 1
                    break
        return count

    def _is_evicted(
        self,
        info: SnapshotInfo,
        name: str,
        asked: dict[str, Opened | None],
        not_there: list[tuple[str, str]],
    ) -> bool:
        """Make a stub of a snapshot, unless the remote is being removed or erased; return whether it is one now."""
        with (
            store_errors(self._data_dir),
            alone_at_once(eviction(self._data_dir, name)) as free,
            telling_lock(self._data_dir, name) as is_alone,
        ):
            if free and is_alone:
                return self._is_stub_now(info, name, asked, not_there)
            self._is_blocked = True
            return False

    def _is_stub_now(
        self,
        info: SnapshotInfo,
        name: str,
        asked: dict[str, Opened | None],
        not_there: list[tuple[str, str]],
    ) -> bool:
        """Make a stub of a snapshot if this remote has it; return whether it is one now. `asked`: None for a remote that did not answer."""
        store = self._machine.store
        try:
            if name not in asked:
                asked[name] = None
                remote = Remotes(self._data_dir).get(name)
                asked[name] = remote_keys.opened(self._data_dir, remote, Retries(stop=self._stop))
            if (opened := asked[name]) is None:
                return False
            try:
                _, found = remote_copies.find(self._data_dir, opened, info)
            except SnapshotNotFound:
                not_there.append((name, info.snapshot_id))
                raise
            remote_copies.require_whole(opened, found, store, info)
            remote_copies.rely_on(self._data_dir, opened, info, store.stubs.identity())
        except OperationCancelled:
            raise
        except GpuCkptError as error:
            if isinstance(error, (StoreUnavailable, AccessDenied)):
                asked[name] = None  # every further request would take as long
            _log.warning(
                "snapshot %s stays on this disk; remote %s: %s", info.snapshot_id, name, error
            )
            return False
        if not store.stubs.make(info.snapshot_id, Stub(name, [kept_secrets.STREAM])):
            return False
        _log.info("snapshot %s is only in remote %s now", info.snapshot_id, name)
        store.on_change(
            SnapshotChange(info.snapshot_id, info.kernel_id, SnapshotChangeKind.CHANGED)
        )
        return True
