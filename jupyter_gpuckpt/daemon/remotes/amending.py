"""The changes of this machine's snapshots that must be sent to a remote: which there are, and how they change its remote sessions."""

from __future__ import annotations

import logging
import random
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import msgspec

from ...errors import (
    AccessDenied,
    ConfigurationError,
    ErrorRecord,
    FormatTooNew,
    RemoteObjectInvalid,
    RemoteObjectMissing,
    StoreUnavailable,
    record_of,
)
from ...remote import upload_progress
from ...remote.listed_facts import Amendment, Told, about, told
from ...remote.remote_deletions import Kept, delete
from ...remote.remote_list import state_folder
from ...remote.remote_sessions import Sessions
from ...store.stub_files import Stub
from ...wire.manifest_records import SnapshotInfo
from .remote_keys import Opened

if TYPE_CHECKING:
    from ...store.local import LocalStore

#: After so many sessions in a row that did not answer, the remaining changes are sent later.
_MAX_MISSES = 2

_log = logging.getLogger(__name__)


class Amended(msgspec.Struct, frozen=True):
    """The result of amendments: the remote session of each snapshot that was found, and those that no remote session lists now (`gone`).

    `later`: the snapshots of remote sessions that did not answer; their changes are sent again later. `error`: why. `kept`: snapshots that
    were deleted here, but that remote sessions still list. `deleted`: those that were marked as deleted in remote sessions.
    """

    sessions: dict[str, str] = {}
    gone: list[str] = []
    later: list[str] = []
    kept: dict[str, Kept] = {}
    deleted: list[str] = []
    error: ErrorRecord | None = None


class LocalState(NamedTuple):
    """The state of this machine's snapshots, as far as it is sent to remotes.

    `needed`: the snapshots that suspended kernels need. `store`: the identity of the store. `is_deleted`: whether a snapshot was deleted
    for good; one that cannot be read, or whose store is not mounted, was not.
    """

    stubs: Mapping[str, Stub]
    needed: Collection[str]
    store: str
    is_deleted: Callable[[str], bool]
    #: Whether a snapshot is listed, for example because its deletion was undone.
    is_listed: Callable[[str], bool]
    #: Whether another store of this machine has a snapshot, or may have it.
    is_elsewhere: Callable[[str], bool]

    @classmethod
    def of(
        cls, store: LocalStore, needed: Collection[str], is_elsewhere: Callable[[str], bool]
    ) -> Self:
        """Return the state of a store's snapshots. Raises StoreError."""
        stubs = store.stubs
        identity, found = stubs.identity(), stubs.all()
        return cls(found, needed, identity, stubs.is_deleted, stubs.is_listed, is_elsewhere)

    def is_relied_on(self, snapshot_id: str, remote: str, *, newest: bool) -> bool:
        """Return whether this machine relies on a remote's copy. A kernel's need of its `newest` does not count: no prune removes it."""
        stub = self.stubs.get(snapshot_id)
        # If the stub is damaged, any remote may have the only copy.
        is_only_there = stub is not None and stub.remote in {"", remote}
        return is_only_there or (snapshot_id in self.needed and not newest)

    def deleted(self, known: Iterable[str], there: Collection[str]) -> set[str]:
        """Return those of the snapshots `known` that were deleted for good."""
        here = {*there, *self.stubs}
        return {name for name in known if name not in here and self.is_deleted(name)}


def changes_to_tell(
    remote: str,
    there: Iterable[SnapshotInfo],
    local: LocalState,
    known: Mapping[str, Told],
    sessions_of: Callable[[SnapshotInfo], list[str]],
    deletions: Collection[str] = (),
) -> list[Amendment]:
    """Return the changes that a remote has not been sent, without those of snapshots that users deleted (`deletions`).

    `there`: the snapshots of this machine that the remote has, newest first. `known`: what was sent, by snapshot. `sessions_of`: returns
    the remote sessions that may list a snapshot.
    """
    found = {info.snapshot_id: info for info in there}
    newest = {info.kernel_id: name for name, info in reversed(list(found.items()))}
    changes = []
    for name, info in found.items():
        before, now = known.get(name), told(info)
        relied_on_in = before.relied_on_in if before else ""
        if local.is_relied_on(name, remote, newest=newest[info.kernel_id] == name):
            now = told(info, relied_on_in or info.kernel_id, local.store)
        if now != before:
            sessions = list(dict.fromkeys([*filter(None, [relied_on_in]), *sessions_of(info)]))
            changes.append(Amendment(name, sessions, before, now, about(info), info.title))
    for name in local.deleted(known, found).difference(deletions):
        before = known[name]
        # It was deleted here, so this machine no longer relies on the remote's copy.
        if before.relied_on_in and before.store == local.store:
            now = msgspec.structs.replace(before, relied_on_in="", store="")
            changes.append(Amendment(name, [before.relied_on_in], before, now))
    return changes


class _Amending:
    """A single run that sends changes, session by session. `ahead`: the seconds by which the remote's clock is ahead."""

    def __init__(
        self,
        sessions: Sessions,
        machine: tuple[str, str],
        state_dir: Path,
        changes: Sequence[Amendment],
        ahead: float,
    ) -> None:
        self._sessions, self._machine, self._state_dir = sessions, machine, state_dir
        self._left = {one.snapshot_id: one for one in changes}
        self._found: dict[str, str] = {}
        self._unclear, self._later = set[str](), set[str]()
        self._kept: dict[str, Kept] = {}
        self._deleted, self._ahead = set[str](), ahead
        self._error: ErrorRecord | None = None
        #: How many sessions in a row did not answer.
        self._misses = 0

    def tell(self, place: int) -> None:
        """Send each remaining change to the remote session at index `place` of its list of candidate sessions."""
        by_session: dict[str, dict[str, Amendment]] = {}
        for name, one in self._left.items():
            if place < len(one.sessions) and name not in self._later:
                by_session.setdefault(one.sessions[place], {})[name] = one
        # In random order, so that sessions that do not answer are not always tried first.
        for session_id, some in random.sample(list(by_session.items()), len(by_session)):
            self._tell(session_id, some)

    def _tell(self, session_id: str, some: dict[str, Amendment]) -> None:
        if self._misses == _MAX_MISSES:
            self._later.update(some)  # each attempt may take a long time
            return
        try:
            listed = self._changed(session_id, some)
        except RemoteObjectMissing:
            listed = set()
        except (StoreUnavailable, AccessDenied) as error:
            _log.warning("changes are sent to session %s later: %s", session_id, error)
            self._misses, self._error = self._misses + 1, record_of(error)
            self._later.update(some)
            return
        except (RemoteObjectInvalid, FormatTooNew, ConfigurationError) as error:
            _log.warning("changes are not sent to session %s: %s", session_id, error)
            self._unclear.update(some)
            deleted = (name for name, one in some.items() if one.deletion)
            self._keep(dict.fromkeys(deleted, Kept(str(error), waits=True)))
            listed = set()
        self._misses = 0
        self._found |= dict.fromkeys(listed, session_id)
        for name in listed:
            del self._left[name]

    def _changed(self, session_id: str, some: dict[str, Amendment]) -> set[str]:
        """Apply amendments to a remote session; return the ids of the snapshots that it lists.

        Snapshots to be deleted are not among them, because their deletions go to all candidate sessions.
        """
        deletions = {name: one.deletion for name, one in some.items() if one.deletion}
        if deletions:
            fenced = any(
                upload_progress.path_of(self._state_dir, name).exists() for name in deletions
            )
            machine_id, _ = self._machine
            now = time.time() + self._ahead
            kept, marked = delete(
                self._sessions, session_id, deletions, machine_id, now=now, fenced=fenced
            )
            self._keep(kept)
            self._deleted |= marked
        others = {name: one for name, one in some.items() if name not in deletions}
        return self._sessions.amend(session_id, others, self._machine) if others else set()

    def _keep(self, kept: Mapping[str, Kept]) -> None:
        """Record why a session keeps deleted snapshots. If there are several for a snapshot, record one that may end."""
        for name, one in kept.items():
            before = self._kept.get(name)
            if before is None or not before.waits:
                self._kept[name] = one

    def result(self) -> Amended:
        """Return the result of the run."""
        later = sorted(self._later)
        gone = sorted(self._left.keys() - self._unclear - self._later - self._kept.keys())
        kept = {name: one for name, one in self._kept.items() if name not in self._later}
        return Amended(self._found, gone, later, kept, sorted(self._deleted), self._error)


def amend(data_dir: Path, opened: Opened, changes: Sequence[Amendment]) -> Amended:
    """Send changes to a remote. Raises what `Bucket` raises, but not for a session that does not answer: the others are still changed.

    A remote session that cannot be read is logged and left as it is. A remote that only another machine may write to is not changed.
    """
    if not opened.may_write:
        why = Kept("only another machine may write to this remote", waits=False)
        return Amended(
            {one.snapshot_id: one.sessions[0] for one in changes if not one.deletion},
            kept={one.snapshot_id: why for one in changes if one.deletion},
        )
    state_dir = state_folder(data_dir, opened.remote.name)
    machine = opened.machine_id, socket.gethostname()
    run = _Amending(opened.sessions, machine, state_dir, changes, opened.remote.clock_ahead_seconds)
    for place in range(max((len(one.sessions) for one in changes), default=0)):
        run.tell(place)
    return run.result()
