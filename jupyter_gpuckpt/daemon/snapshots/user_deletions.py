"""The record of users' deletions that must be sent to remotes. Each remote has a file of its own, so nothing is lost while it is offline.

A deletion is recorded when the user deletes the snapshot, and becomes final when it can no longer be undone here. Only then is it sent,
by the daemon of the store in which it was made. Retention on this machine is no deletion by a user: a remote's own rule decides what
the remote keeps. So when retention removes a snapshot, any record of its deletion is removed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from ...errors import GpuCkptError
from ...remote.remote_list import Remotes, state_folder
from ...store.faults import store_errors
from ...wire import decoding
from ...wire.manifest_records import SnapshotInfo
from ..kernels.whole_files import change_records

#: The time after which a deletion is sent again to a remote that kept the snapshot.
_AGAIN_SECONDS = 86_400.0

_log = logging.getLogger(__name__)


class UserDeletion(msgspec.Struct, frozen=True):
    """The deletion of a snapshot by a user. Times are seconds since the epoch; `tried_at` 0: it was not sent yet.

    `store`: the identity of the store with the snapshot. `is_final`: whether the deletion can no longer be undone.
    """

    kernel_id: str
    at: float
    store: str = ""
    is_final: bool = False
    tried_at: float = 0.0
    #: Whether the snapshot was pinned here when it was deleted.
    pinned: bool = False
    #: Why the remote still lists the snapshot.
    reason: str = ""

    @property
    def is_due(self) -> bool:
        """Whether the deletion is to be sent now."""
        return self.is_final and not 0 <= time.time() - self.tried_at < _AGAIN_SECONDS


_Change = Callable[[dict[str, UserDeletion]], dict[str, UserDeletion]]


class UserDeletions:
    """The file of deletions for one remote, in the folder of its local state. Thread-safe. Methods raise StoreUnavailable, StoreFull."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "deletions.json"

    def all(self) -> dict[str, UserDeletion]:
        """Return the recorded deletions, by snapshot. If the file is damaged, there are none, and nothing is deleted in the remote."""
        with store_errors(self._path.parent):
            try:
                return decoding.from_json(self._path.read_bytes(), dict[str, UserDeletion])
            except FileNotFoundError:
                return {}
            except msgspec.DecodeError as error:
                _log.warning(
                    "%s is damaged, so the remote keeps snapshots that were deleted here: %s",
                    self._path,
                    error,
                )
                return {}

    def note(self, deletions: Mapping[str, UserDeletion]) -> None:
        """Record deletions."""
        self._change(lambda known: {**known, **deletions})

    def postpone(self, deletions: Mapping[str, UserDeletion]) -> None:
        """Replace these records, unless they were removed or the user has deleted the snapshot again since."""

        def later(name: str, one: UserDeletion) -> UserDeletion:
            other = deletions.get(name, one)
            return other if other.at == one.at else one

        self._change(lambda known: {name: later(name, one) for name, one in known.items()})

    def settle(self, deletions: Mapping[str, UserDeletion]) -> None:
        """Remove these records, unless the user has deleted the snapshot again since."""
        self._change(
            lambda known: {
                k: v for k, v in known.items() if k not in deletions or v.at != deletions[k].at
            }
        )

    def finish(self, ids: Collection[str], store: str) -> None:
        """Record that these deletions in a store can no longer be undone. If none of them is recorded, nothing is written."""

        def final(name: str, one: UserDeletion) -> UserDeletion:
            is_meant = name in ids and one.store == store
            return msgspec.structs.replace(one, is_final=True) if is_meant else one

        if self.all().keys() & set(ids):
            self._change(lambda known: {name: final(name, one) for name, one in known.items()})

    def forget(self, ids: Collection[str], store: str = "") -> None:
        """Remove the records of these snapshots; with `store` only of deletions in that store. If there are none, nothing is written."""
        if self.all().keys() & set(ids):
            self._change(
                lambda known: {
                    k: v for k, v in known.items() if k not in ids or store not in {"", v.store}
                }
            )

    def _change(self, change: _Change) -> None:
        change_records(self._path, self.all, change)


def note_in_all(data_dir: Path, info: SnapshotInfo, at: float, store: str) -> None:
    """Record for all remotes that a snapshot is about to be deleted. Never raises: the deletion here must not fail for that."""
    noted = {info.snapshot_id: UserDeletion(info.kernel_id, at, store, pinned=info.pinned)}
    _in_all(data_dir, [info.snapshot_id], lambda file: file.note(noted))


def finish_in_all(data_dir: Path, ids: Collection[str], store: str) -> None:
    """Record for all remotes that these deletions in a store are final. Never raises; a deletion that is not recorded is never sent."""
    _in_all(data_dir, ids, lambda file: file.finish(ids, store))


def forget_in_all(data_dir: Path, ids: Collection[str], store: str = "") -> None:
    """Remove the records of deletions of these snapshots for all remotes; with `store` only of those in that store. Raises StoreError."""
    for remote in Remotes(data_dir).all():
        UserDeletions(state_folder(data_dir, remote.name)).forget(ids, store)


def _in_all(data_dir: Path, ids: Collection[str], record: Callable[[UserDeletions], None]) -> None:
    names = ", ".join(ids)
    try:
        remotes = Remotes(data_dir).all()
    except GpuCkptError as error:
        _log.warning("no remote is told that snapshot %s was deleted: %s", names, error)
        return
    for remote in remotes:
        try:
            record(UserDeletions(state_folder(data_dir, remote.name)))
        except GpuCkptError as error:
            _log.warning(
                "remote %s is not told that snapshot %s was deleted: %s", remote.name, names, error
            )
