"""The daily check that remotes still list what this machine has uploaded: prunes, erasures and other machines remove snapshots there.

It only reads the remote sessions of this machine's snapshots, so it is made in remotes as well to which nothing is uploaded automatically
and from which nothing may be deleted. A paused remote is left alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...errors import (
    FormatTooNew,
    GpuCkptError,
    RemoteObjectInvalid,
    RemoteObjectMissing,
)
from ...linux.disk_reserve import with_room
from ...linux.file_locks import alone_at_once, eviction
from ...remote.remote_list import state_folder
from ...remote.remote_sessions import RemoteSession
from ...store.faults import store_errors
from ...wire.manifest_records import SnapshotInfo
from ...wire.remote_records import Remote
from ..repeating import Tasks, repeat
from . import remote_keys
from .change_sender import correct_record
from .leases import LeaseFile
from .uploads import Uploads

#: The file whose time is that of the last check.
_FILE = "checked"
_LOOK_SECONDS = 60.0
_EVERY_SECONDS = 86400.0

_log = logging.getLogger(__name__)


class Listed(NamedTuple):
    """The snapshots that a remote lists, and those that it does not list. Snapshots in neither set could not be checked."""

    there: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()


class ListedChecks:
    """The checks of all remotes. `is_busy`: whether work runs for which a user waits."""

    def __init__(self, data_dir: Path, uploads: Uploads, is_busy: Callable[[], bool]) -> None:
        self._data_dir, self._uploads, self._is_busy = data_dir, uploads, is_busy
        self._tasks = Tasks()

    def start(self) -> None:
        """Start the schedule."""
        failure = "a check of what remotes list failed"
        self._tasks.start(repeat(self.look, _LOOK_SECONDS, _log, failure))

    async def close(self) -> None:
        """Stop the schedule."""
        await self._tasks.cancel()

    async def look(self) -> None:
        """Check each remote whose check is due, until a user waits for other work."""
        for remote, _ in await self._uploads.recorded():
            if not remote.paused and await asyncio.to_thread(self._is_due, remote):
                if self._is_busy():
                    return
                await self.check(remote.name)

    async def check(self, name: str) -> None:
        """Check what a remote lists, unless it is being removed."""
        for remote, infos in await self._uploads.recorded():
            if remote.name != name:
                continue
            try:
                found = await asyncio.to_thread(self._listed, remote, infos)
            except GpuCkptError as error:
                _log.warning("remote %s: what it lists could not be checked: %s", name, error)
                continue
            await self._uploads.note_listed(name, found.there)
            self._uploads.wake()  # a deletion that the remote did not carry out is sent again
            if found.gone:
                _log.info(
                    "remote %s no longer lists snapshots that it had: %s",
                    name,
                    ", ".join(found.gone),
                )
                await self._uploads.note_gone(name, found.gone)

    def _listed(self, remote: Remote, infos: list[SnapshotInfo]) -> Listed:
        path = eviction(self._data_dir, remote.name)
        with store_errors(self._data_dir), alone_at_once(path) as is_alone:
            if not is_alone:
                return Listed()
            self._note(remote)
            return listed(self._data_dir, remote, infos) if infos else Listed()

    def _is_due(self, remote: Remote) -> bool:
        with suppress(OSError):
            return not 0 <= time.time() - self._path(remote).stat().st_mtime < _EVERY_SECONDS
        return True

    def _note(self, remote: Remote) -> None:
        """Record the attempt, so that a remote that cannot be reached is not tried at each look."""
        path = self._path(remote)
        with store_errors(path.parent):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with_room(path, path.touch)

    def _path(self, remote: Remote) -> Path:
        return state_folder(self._data_dir, remote.name) / _FILE


def listed(data_dir: Path, remote: Remote, infos: Sequence[SnapshotInfo]) -> Listed:
    """Return which snapshots the remote sessions list; correct the record of what was sent. Raises what `Bucket` raises.

    An unlisted snapshot does not count as gone if a session that may list it cannot be read.
    """
    sessions = remote_keys.opened(data_dir, remote).sessions
    leases = LeaseFile(state_folder(data_dir, remote.name))
    by_snapshot = {info.snapshot_id: leases.sessions_of(info) for info in infos}
    found, unclear = dict[str, RemoteSession](), set[str]()
    for session_id in sorted({one for some in by_snapshot.values() for one in some}):
        try:
            with suppress(RemoteObjectMissing):
                found[session_id] = sessions.get(session_id)
        except (RemoteObjectInvalid, FormatTooNew) as error:
            _log.warning("remote %s: session %s: %s", remote.name, session_id, error)
            unclear.add(session_id)
    correct_record(data_dir, remote.name, found.values())
    names = {one.snapshot_id for session in found.values() for one in session.listed}
    known = {name for name, some in by_snapshot.items() if unclear.isdisjoint(some)}
    return Listed(frozenset(by_snapshot.keys() & names), frozenset(known - names))
