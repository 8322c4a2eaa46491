"""The sender of what has changed of this machine's snapshots in a remote: pins, titles, deletions, and on which it relies there.

What was told is on record (`sent_changes.py`); the difference to the present state is what has to be told. While a snapshot becomes a
stub (`near_copy.py`), nothing is told, so that one of both cannot undo what the other tells.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ..file_locks import alone_at_once
from ..manifest_records import SnapshotInfo
from ..store.far.about import Amendment, Deletion, Told
from ..store.far.sessions import FarSession, FarSnapshot
from ..store.faults import store_errors
from . import remote_keys
from .amending import Amended, LocalState, changes_to_tell
from .lease_file import LeaseFile
from .sent_changes import SentChanges
from .user_deletions import UserDeletion, UserDeletions

_log = logging.getLogger(__name__)


@contextmanager
def telling_lock(data_dir: Path, remote: str) -> Iterator[bool]:
    """Try to be the only one of this machine that tells a remote something inside the block; yield whether that is so."""
    with (
        store_errors(data_dir),
        alone_at_once(data_dir / "remotes" / f"{remote}.telling") as is_alone,
    ):
        yield is_alone


def correct_record(
    data_dir: Path,
    remote: str,
    sessions: Iterable[FarSession],
    infos: Iterable[SnapshotInfo] = (),
    set_pin: Callable[[str, bool], None] = lambda snapshot_id, pinned: None,
) -> None:
    """Correct the record of what a remote was told if its far sessions no longer say it, so that it is told again. Raises StoreError.

    Something may have removed it there: another machine that was told that this one is lost, an older version, a restored backup.
    What another machine has pinned is pinned here, too, by `set_pin`, until it is no longer pinned there. `infos`: the local snapshots.
    """
    machine = remote_keys.machine_id(data_dir)
    listed: dict[str, list[FarSnapshot]] = {}
    for session in sessions:
        for one in session.listed:
            listed.setdefault(one.snapshot_id, []).append(one)
    with telling_lock(data_dir, remote) as is_alone:
        if not is_alone:
            return  # the next collection corrects it
        file = SentChanges(remote_keys.state_dir(data_dir, remote))
        known = file.all()
        corrected = {
            name: _as_listed(known[name], found, machine)
            for name, found in listed.items()
            if name in known
        }
        for info in infos:
            name, found = info.snapshot_id, listed.get(info.snapshot_id, [])
            pinned = _followed(corrected[name], info, found) if name in corrected else None
            if pinned is not None:
                # It is pinned before that is recorded: the other way round, a crash would make the missing pin a change to be told.
                set_pin(name, pinned)
                corrected[name] = msgspec.structs.replace(
                    corrected[name], pinned=pinned, pinned_there=pinned
                )
        file.note({name: one for name, one in corrected.items() if one != known[name]})


def _followed(known: Told, info: SnapshotInfo, found: list[FarSnapshot]) -> bool | None:
    """Return whether a local snapshot is to be pinned because of its entries in the remote; None: as it is."""
    abouts = [one.about for one in found if one.about is not None]
    is_pinned = any(one.pinned for one in abouts)
    if info.pinned != known.pinned or not abouts or is_pinned == known.pinned:
        return None  # what the user has changed here since is told first
    return is_pinned if is_pinned or known.pinned_there else None


def _as_listed(known: Told, found: list[FarSnapshot], machine: str) -> Told:
    """Return that part of what is on record which the entries of a snapshot still say."""
    if not any(machine in one.relied_on_by for one in found):
        known = msgspec.structs.replace(known, relied_on_in="", store="")
    abouts = [one.about for one in found if one.about is not None]
    stays = known.pinned_there or not abouts or any(one.pinned for one in abouts)
    return msgspec.structs.replace(
        known,
        pinned=known.pinned and stays,
        named=known.named and (not abouts or any(one.named for one in abouts)),
    )


class ChangeSender:
    """The changes that one remote has to be told. Used in a thread. Methods raise StoreError."""

    def __init__(self, data_dir: Path, remote: str) -> None:
        self._data_dir, self._remote = data_dir, remote
        state = remote_keys.state_dir(data_dir, remote)
        self._file, self._leases = SentChanges(state), LeaseFile(state)
        self._deletions = UserDeletions(state)
        #: What could not be told and is not tried again.
        self._refused: dict[str, Told] = {}
        #: How many deletions the remote has not carried out, or is not to be told yet, at the last look.
        self.deletions = 0

    def changes(self, there: Iterable[SnapshotInfo], local: LocalState) -> list[Amendment]:
        """Return the changes to be told. `there`: the snapshots that the remote has, newest first."""
        known, deletions = self._file.all(), self._deletions.all()
        sessions_of = self._leases.sessions_of
        found = changes_to_tell(self._remote, there, local, known, sessions_of, deletions)
        due = {
            name: one
            for name, one in deletions.items()
            if one.is_due
            and one.store == local.store  # that of another store is told by its daemon
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
        is_own_pin = before is not None and before.pinned and not before.pinned_there
        deletion = Deletion(
            {lease.session_id: lease.term},
            unpinned=is_own_pin and not one.pinned,
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
        """Tell the remote by `send`; return what came of it, or None if that has to wait. Raises what `send` raises."""
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
            # Nothing more is told of what was deleted here or is gone there.
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
        """Record which deletions were told, and return them; those that have to wait there are told again after a day."""
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

        A deletion that was undone, or whose snapshot has come back, is no longer told.
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
        """Do not try these again until they are others; deletions are tried again after a day."""
        self._refused |= {one.snapshot_id: one.now for one in changes if not one.deletion}
        if deletions := {one.snapshot_id for one in changes if one.deletion}:
            known = self._deletions.all()
            self._deletions.postpone(
                {name: _tried(known[name], why) for name in deletions & known.keys()}
            )

    def note(self, told: Mapping[str, Told], *, new_only: bool = False) -> None:
        """Record what was told with an upload; with `new_only` keep what is on record of a snapshot already."""
        known = self._file.all() if new_only else {}
        self._file.note({name: one for name, one in told.items() if name not in known})


def _tried(one: UserDeletion, reason: str) -> UserDeletion:
    return msgspec.structs.replace(one, tried_at=time.time(), reason=reason)


def _noted(change: Amendment, session_id: str) -> Told:
    now = change.now
    if not now.relied_on_in or now.relied_on_in == session_id:
        return now
    return msgspec.structs.replace(now, relied_on_in=session_id)
