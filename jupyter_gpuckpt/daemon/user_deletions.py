"""The record of the deletions by users of which remotes have to be told. One file for each remote, so nothing is lost offline.

A deletion is recorded when the user deletes the snapshot, and told when it can no longer be undone here. Retention on this machine
is no deletion by a user: what a remote keeps is decided by the remote's own rule.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from .. import decoding
from ..errors import GpuCkptError
from ..file_locks import alone
from ..model import SnapshotInfo
from ..store.far.remotes import Remotes
from ..store.faults import store_errors
from ..store.manifests import replace_file
from . import remote_keys

#: The time until a remote that kept a deleted snapshot is asked again.
_AGAIN_SECONDS = 86_400.0

_log = logging.getLogger(__name__)


class UserDeletion(msgspec.Struct, frozen=True):
    """The deletion of a snapshot by a user. Times are seconds since the epoch; `tried_at` 0: the remote was not told yet."""

    kernel_id: str
    at: float
    tried_at: float = 0.0
    #: Whether it was pinned here then.
    pinned: bool = False
    #: Why the remote still lists the snapshot.
    reason: str = ""

    @property
    def is_due(self) -> bool:
        """Whether the remote is to be told now."""
        return not 0 <= time.time() - self.tried_at < _AGAIN_SECONDS


_Change = Callable[[dict[str, UserDeletion]], dict[str, UserDeletion]]


class UserDeletions:
    """The file of one remote, in the folder of this machine's state about it. Thread-safe. Methods raise StoreUnavailable, StoreFull."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "deletions.json"

    def all(self) -> dict[str, UserDeletion]:
        """Return the recorded deletions, by snapshot. If the file is damaged, no remote is told to delete anything."""
        with store_errors(self._path.parent):
            try:
                return decoding.from_json(self._path.read_bytes(), dict[str, UserDeletion])
            except FileNotFoundError:
                return {}
            except msgspec.DecodeError as error:
                _log.warning(
                    "%s is damaged, so what was deleted stays there: %s", self._path, error
                )
                return {}

    def note(self, deletions: Mapping[str, UserDeletion]) -> None:
        """Record deletions."""
        self._change(lambda known: {**known, **deletions})

    def settle(self, deletions: Mapping[str, UserDeletion]) -> None:
        """Remove these records, unless the user has deleted the snapshot again since."""
        self._change(
            lambda known: {
                k: v for k, v in known.items() if k not in deletions or v.at != deletions[k].at
            }
        )

    def _change(self, change: _Change) -> None:
        folder = self._path.parent
        with store_errors(folder), alone(self._path.with_suffix(".lock")):
            before = self.all()
            after = change(before)
            if after != before:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                replace_file(self._path, msgspec.json.encode(after))


def note_in_all(data_dir: Path, info: SnapshotInfo, at: float) -> None:
    """Record the deletion of a snapshot for all remotes. Never raises: the deletion on this disk must not fail because of it."""
    try:
        remotes = Remotes(data_dir).all()
    except GpuCkptError as error:
        _log.warning("no remote is told that snapshot %s was deleted: %s", info.snapshot_id, error)
        return
    for remote in remotes:
        noted = {info.snapshot_id: UserDeletion(info.kernel_id, at, pinned=info.pinned)}
        try:
            UserDeletions(remote_keys.state_dir(data_dir, remote.name)).note(noted)
        except GpuCkptError as error:
            _log.warning(
                "remote %s is not told that snapshot %s was deleted: %s",
                *(remote.name, info.snapshot_id, error),
            )
