"""The schedule of the remote collector. One machine at a time removes a remote's packs that no manifest needs, when no user waits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ...errors import GpuCkptError, OperationCancelled, RemoteNotFound, record_of
from ...remote.remote_list import Remotes, state_folder
from ...wire import decoding
from ...wire.plurals import counted
from ...wire.remote_records import Remote
from ...wire.snapshot_records import RemoteCollection, RemoteUploads
from ..kernels.whole_files import write_file
from ..repeating import Tasks, repeat
from . import remote_keys
from .sending import Sending

_FILE = "collected.json"
_LOOK_SECONDS = 60.0
#: The pause after a failure.
_AGAIN_SECONDS = 3600.0

_log = logging.getLogger(__name__)


class RemoteCollecting:
    """The collector's schedule for all remotes. `is_busy`: whether work runs for which a user waits."""

    def __init__(
        self,
        data_dir: Path,
        interval_seconds: float,
        is_busy: Callable[[], bool],
    ) -> None:
        self._data_dir, self._interval, self._is_busy = data_dir, interval_seconds, is_busy
        self._sending: Sending | None = None
        self._is_over = False
        self._tasks = Tasks()

    def start(self) -> None:
        """Start the schedule, unless the interval is 0."""
        if self._interval:
            work = repeat(self.look, _LOOK_SECONDS, _log, "nothing is collected in remotes")
            self._tasks.start(work)

    async def close(self) -> None:
        """Stop the schedule and a running collection; the next collection continues it."""
        self._is_over = True
        if self._sending is not None:
            self._sending.stop()
        await self._tasks.cancel()

    def added_to(self, found: Sequence[RemoteUploads]) -> list[RemoteUploads]:
        """Return the states of remotes, each with the result of this machine's last collection there."""
        return [
            msgspec.structs.replace(one, collected=self._last(one.remote) or RemoteCollection())
            for one in found
        ]

    async def look(self) -> None:
        """Collect in each remote in which a collection is due."""
        for remote in await asyncio.to_thread(Remotes(self._data_dir).all):
            if await asyncio.to_thread(self._is_due, remote):
                if self._is_busy() or self._is_over:
                    return
                await asyncio.to_thread(self._collect, remote)

    def _is_due(self, remote: Remote) -> bool:
        capabilities = remote.capabilities
        if remote.paused or not remote.automatic or (capabilities and not capabilities.deletes):
            return False
        last = self._last(remote.name)
        if last is None:
            # The remote may be new, so the first collection waits a full interval.
            self._note(remote, RemoteCollection(looked_at=time.time()))
            return False
        wait = min(_AGAIN_SECONDS, self._interval) if last.error else self._interval
        return not 0 <= time.time() - last.looked_at < wait

    def _collect(self, remote: Remote) -> None:
        now = time.time()
        self._sending = Sending(self._data_dir, remote)
        try:
            if self._is_over:
                return
            done = self._sending.collect(self._interval)
        except OperationCancelled:
            return
        except GpuCkptError as error:
            _log.warning("nothing was collected in remote %s: %s", remote.name, error)
            done = RemoteCollection(now, error=record_of(error))
        finally:
            self._sending = None
        if done.at:
            _log.info(
                "collected in remote %s: removed %s with %d bytes, condemned %d",
                *(remote.name, counted(done.removed, "pack"), done.freed_bytes, done.condemned),
            )
        elif last := self._last(remote.name):
            done = msgspec.structs.replace(last, looked_at=done.looked_at, error=done.error)
        self._note(remote, done)

    def _last(self, name: str) -> RemoteCollection | None:
        path = state_folder(self._data_dir, name) / _FILE
        try:
            return decoding.from_json(path.read_bytes(), RemoteCollection)
        except (OSError, msgspec.DecodeError):
            return None

    def _note(self, remote: Remote, done: RemoteCollection) -> None:
        """Record the result of a collection."""
        folder = state_folder(self._data_dir, remote.name)
        try:
            # No file is written for a remote that was removed meanwhile.
            with remote_keys.uploading(self._data_dir, remote):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_file(folder / _FILE, msgspec.json.encode(done))
        except (RemoteNotFound, OSError) as error:
            _log.debug("remote %s: %s", remote.name, error)
