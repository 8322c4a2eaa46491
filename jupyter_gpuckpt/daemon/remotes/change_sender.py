"""The sender of changes of this machine's snapshots to a remote: pins, titles, deletions, and the copies that it relies on there.

A record has what was sent (`SentChanges`); the difference from the present state must be sent. While a snapshot becomes a stub
(`near_copy.py`), nothing is sent, so that neither task undoes the changes of the other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ...linux.file_locks import alone_at_once
from ...remote.listed_facts import Amendment, Deletion, Told
from ...remote.remote_list import state_folder
from ...remote.remote_sessions import RemoteSession
from ...store.faults import store_errors
from ...wire import decoding
from ...wire.manifest_records import SnapshotInfo
from ..kernels.whole_files import change_records
from ..snapshots.user_deletions import UserDeletion, UserDeletions
from . import remote_keys
from .amending import Amended, LocalState, changes_to_tell
from .leases import LeaseFile

_log = logging.getLogger(__name__)


class SentChanges:
    """The file of what was sent to one remote, in the folder of its local state. Thread-safe. Methods raise StoreUnavailable, StoreFull.

    A state that differs from the record is sent again. So no change is lost when a daemon ends or the remote cannot be reached.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "told.json"

    def all(self) -> dict[str, Told]:
        """Return what was sent, by snapshot; nothing if the file is damaged. Then only changes that protect snapshots are sent."""
        with store_errors(self._path.parent):
            try:
                return decoding.from_json(self._path.read_bytes(), dict[str, Told])
            except FileNotFoundError:
                return {}
            except msgspec.DecodeError as error:
                _log.warning("%s is damaged, so its changes are sent again: %s", self._path, error)
                return {}

    def note(self, told: Mapping[str, Told], forgotten: Collection[str] = ()) -> None:
        """Record what was sent about snapshots, and remove the records of those in `forgotten`."""
        change_records(
            self._path,
            self.all,
            lambda known: {k: v for k, v in {**known, **told}.items() if k not in forgotten},
        )


@contextmanager
def telling_lock(data_dir: Path, remote: str) -> Iterator[bool]:
    """Try to take the lock for sending changes to a remote, one per machine and remote; yield whether the block has it."""
    with (
        store_errors(data_dir),
        alone_at_once(data_dir / "remotes" / f"{remote}.telling") as is_alone,
    ):
        yield is_alone


def correct_record(data_dir: Path, remote: str, sessions: Iterable[RemoteSession]) -> None:
    """Remove from the record of sent changes that this machine relies on snapshots of the remote sessions which do not say so any more.

    So it is sent again. It may have been removed by another machine, on which a user declared this one lost, or by a restored backup.
    Raises StoreError.
    """
    machine = remote_keys.machine_id(data_dir)
    relied_on = dict[str, bool]()
    for session in sessions:
        for one in session.listed:
            name = one.snapshot_id
            relied_on[name] = relied_on.get(name, False) or machine in one.relied_on_by
    with telling_lock(data_dir, remote) as is_alone:
        if not is_alone:
            return  # the next check corrects it
        file = SentChanges(state_folder(data_dir, remote))
        file.note(
            {
                name: msgspec.structs.replace(one, relied_on_in="", store="")
                for name, one in file.all().items()
                if one.relied_on_in and not relied_on.get(name, True)
            }
        )


class ChangeSender:
    """The sender of changes to one remote, for use in threads. Methods raise StoreError."""

    def __init__(self, data_dir: Path, remote: str) -> None:
        self._data_dir, self._remote = data_dir, remote
        state = state_folder(data_dir, remote)
        self._file, self._leases = SentChanges(state), LeaseFile(state)
        self._deletions = UserDeletions(state)
        #: The states that could not be sent and are not tried again, by snapshot.
        self._refused: dict[str, Told] = {}
        #: How many deletions can no longer be undone and were not carried out by the remote, at the last look.
        self.deletions = 0

    def changes(self, there: Iterable[SnapshotInfo], local: LocalState) -> list[Amendment]:
        """Return the changes to be sent. `there`: the snapshots that the remote has, newest first."""
        known, deletions = self._file.all(), self._deletions.all()
        sessions_of = self._leases.sessions_of
        found = changes_to_tell(self._remote, there, local, known, sessions_of, deletions)
        due = {
            name: one
            for name, one in deletions.items()
            if one.is_due
            and one.store == local.store  # the daemon of another store sends that store's
            and local.is_deleted(name)
            and not local.is_elsewhere(name)
        }
        self.deletions = sum(
            one.is_final and one.store == local.store for one in deletions.values()
        )
        found += [self._deletion_of(name, one, known.get(name)) for name, one in due.items()]
        return [one for one in found if self._refused.get(one.snapshot_id) != one.now]

    def _deletion_of(self, name: str, one: UserDeletion, before: Told | None) -> Amendment:
        lease, info = self._leases.of(one.kernel_id), SnapshotInfo(name, one.kernel_id, one.at, "")
        sessions = [before.relied_on_in] if before and before.relied_on_in else []
        sessions = list(dict.fromkeys([*sessions, *self._leases.sessions_of(info)]))
        deletion = Deletion(
            {lease.session_id: lease.term},
            unpinned=bool(before and before.pinned) and not one.pinned,
            # Another store may have the rest of the same snapshot.
            was_relied_on=bool(before and before.relied_on_in and before.store == one.store),
        )
        return Amendment(name, sessions, before, Told(), deletion=deletion)

    def tell(
        self,
        there: Iterable[SnapshotInfo],
        local_now: Callable[[], LocalState],
        send: Callable[[list[Amendment]], Amended],
    ) -> Amended | None:
        """Send the changes by `send`, and record them; return the result, None if another task has the lock. Raises what `send` raises."""
        with telling_lock(self._data_dir, self._remote) as is_alone:
            if not is_alone:
                return None
            if not (changes := self.changes(there, local_now())):
                return Amended()
            done = send(changes)
            noted = {
                one.snapshot_id: _noted(one, done.sessions[one.snapshot_id])
                for one in changes
                if one.snapshot_id in done.sessions
            }
            deleted = self._note_deletions(changes, done)
            # No more changes are sent of snapshots that were deleted here or are gone there.
            ended = {one.snapshot_id for one in changes if one.about is None}
            forgotten = ended & {*noted, *done.gone} | set(done.gone)
            self._file.note({k: v for k, v in noted.items() if k not in forgotten}, forgotten)
            known = {*noted, *forgotten, *done.later}
            self.refuse(
                [one for one in changes if one.snapshot_id not in known and not one.deletion]
            )
        left = [one for one in done.gone if one not in deleted]
        return msgspec.structs.replace(done, gone=left)

    def _note_deletions(self, changes: list[Amendment], done: Amended) -> set[str]:
        """Record the results of deletions; return the snapshots of those that are settled. The others are sent again after a day."""
        known, settled, waiting = self._deletions.all(), {}, {}
        for change in changes:
            name = change.snapshot_id
            if change.deletion is None or name in done.later or name not in known:
                continue
            kept = done.kept.get(name)
            if kept is not None:
                _log.info(
                    "remote %s keeps deleted snapshot %s: %s", self._remote, name, kept.reason
                )
            elif name in done.deleted:
                _log.info("snapshot %s is deleted in remote %s as well", name, self._remote)
            if kept is not None and kept.waits:
                waiting[name] = _tried(known[name], kept.reason)
            else:
                settled[name] = known[name]
        self._deletions.settle(settled)
        self._deletions.postpone(waiting)
        return set(settled)

    def forget_deleted(self, there: Iterable[SnapshotInfo], local: LocalState) -> None:
        """Remove the records of snapshots that were deleted here and that this machine does not rely on.

        A deletion that was undone, or whose snapshot has come back, is no longer sent.
        """
        known, deletions = self._file.all(), self._deletions.all()
        if undone := {
            name: one
            for name, one in deletions.items()
            if one.store == local.store and local.is_listed(name)
        }:
            self._deletions.settle(undone)
        deleted = local.deleted(known, {info.snapshot_id for info in there})
        if gone := {
            name
            for name in deleted
            if not known[name].relied_on_in
            and name not in deletions
            and not local.is_elsewhere(name)
        }:
            self._file.note({}, gone)

    def refuse(self, changes: Sequence[Amendment], why: str = "") -> None:
        """Do not send these changes again until they differ; send deletions again after a day. `why`: recorded with deletions."""
        self._refused |= {one.snapshot_id: one.now for one in changes if not one.deletion}
        if deletions := {one.snapshot_id for one in changes if one.deletion}:
            known = self._deletions.all()
            self._deletions.postpone(
                {name: _tried(known[name], why) for name in deletions & known.keys()}
            )

    def note(self, told: Mapping[str, Told], *, new_only: bool = False) -> None:
        """Record what was sent with uploads, by snapshot; with `new_only` do not replace existing records."""
        known = self._file.all() if new_only else {}
        self._file.note({name: one for name, one in told.items() if name not in known})


def _tried(one: UserDeletion, reason: str) -> UserDeletion:
    return msgspec.structs.replace(one, tried_at=time.time(), reason=reason)


def _noted(change: Amendment, session_id: str) -> Told:
    now = change.now
    if not now.relied_on_in or now.relied_on_in == session_id:
        return now
    return msgspec.structs.replace(now, relied_on_in=session_id)
