"""The file that records, for one remote, the far session of each kernel of this data directory and the leases of its daemons.

A far session has the id of its kernel. When another machine has taken it over, what is saved here is a branch from then on, in a
far session with an id of its own. Daemons of several hosts may share the file; each kernel belongs to one of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from ...errors import ConfigurationError
from ...remote.remote_sessions import Tenure
from ...store.faults import store_errors
from ...wire import decoding, ids
from ...wire.manifest_records import SnapshotInfo
from ..kernels.whole_files import change_records

#: The number of former terms that are kept. Snapshots are uploaded long before as many leases have been granted.
_TERMS = 100


class KernelLease(msgspec.Struct, frozen=True):
    """A kernel's far session, and the last lease of it that was granted here; `term` 0: none was granted.

    `is_held`: it was not released. `is_doubtful`: the kernel runs, but the remote could not be asked whether others had the session since.
    """

    session_id: str
    daemon_id: str = ""
    term: int = 0
    is_held: bool = False
    is_doubtful: bool = False
    #: The key of the place (`place.py`) whose daemon it was granted to; empty if none was.
    place: str = ""
    #: The terms of the leases that were granted here, in order, each with the highest number of a snapshot before it.
    terms: list[tuple[int, int]] = []

    @property
    def highest(self) -> int:
        """The number that the numbers of the kernel's next snapshots must exceed."""
        return max((highest for highest, _ in self.terms), default=0)

    def term_of(self, number: int) -> int:
        """Return the term in which a snapshot of this number was made; 0: before the first lease that is known here."""
        return next((term for highest, term in reversed(self.terms) if number > highest), 0)

    def renewed(self, lease: KernelLease, highest: int) -> KernelLease:
        """Return `lease`, which was granted after this one. `highest`: the highest number of a snapshot until then."""
        known = self.terms if lease.session_id == self.session_id else []
        if not known or known[-1][1] != lease.term:
            # Of two terms without a snapshot in between, only the later can have one.
            before = [one for one in known if one[0] < highest]
            known = [*before[-_TERMS:], (highest, lease.term)]
        return msgspec.structs.replace(lease, terms=known)

    @property
    def tenure(self) -> Tenure | None:
        """The lease that is checked when a snapshot is listed; None if no kernel runs here, so that others may have had the session."""
        fenced = self.is_held or self.is_doubtful
        return Tenure(self.daemon_id, self.term) if fenced else None


class _File(msgspec.Struct, frozen=True):
    #: The lease of each kernel, by the kernel's id.
    kernels: dict[str, KernelLease] = {}
    #: The far sessions of snapshots that are not in the present far session of their kernel, by the snapshot's id.
    fetched: dict[str, str] = {}


class LeaseFile:
    """The file of one remote, in the folder of this machine's state about it (`remote_keys.state_dir`). Thread-safe.

    Methods raise StoreUnavailable, StoreFull, ConfigurationError if the file is damaged.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "leases.json"

    def all(self) -> dict[str, KernelLease]:
        """Return the leases of all recorded kernels, by the kernel's id."""
        return self._read().kernels

    def of(self, kernel_id: str) -> KernelLease:
        """Return the recorded lease of a kernel."""
        return self._in(self._read(), kernel_id)

    def sessions_of(self, info: SnapshotInfo) -> list[str]:
        """Return the ids of the far sessions that may list a snapshot, the likeliest first."""
        known = self._read()
        goes_on = self._in(known, info.kernel_id).session_id
        found = [known.fetched.get(info.snapshot_id), goes_on, info.kernel_id]
        return list(dict.fromkeys(one for one in found if one))

    def session_to_go_on(self, kernel_id: str, snapshot_id: str) -> str:
        """Return the id of the far session in which a kernel goes on if it is resumed from a snapshot."""
        known = self._read()
        return known.fetched.get(snapshot_id) or self._in(known, kernel_id).session_id

    def going_on_in(self, session_id: str) -> set[str]:
        """Return the kernels that go on in a far session: the recorded ones, else an unrecorded kernel of the same id."""
        known = self._read().kernels
        found = {name for name, one in known.items() if one.session_id == session_id}
        return found or {session_id} - known.keys()

    def note_fetched(self, kernel_id: str, snapshot_id: str, session_id: str) -> None:
        """Record where a snapshot was fetched from."""

        def note(known: _File) -> _File:
            if {session_id, self._in(known, kernel_id).session_id} == {kernel_id}:
                return known
            return msgspec.structs.replace(known, fetched=known.fetched | {snapshot_id: session_id})

        self._change(note)

    def to_upload(self, info: SnapshotInfo) -> tuple[KernelLease, str, Tenure | None]:
        """Return the lease of a snapshot's kernel, the far session that will list the snapshot, and the tenure to check then."""
        known = self._read()
        lease = self._in(known, info.kernel_id)
        session_id = known.fetched.get(info.snapshot_id, lease.session_id)
        return lease, session_id, lease.tenure if session_id == lease.session_id else None

    def begin(self, kernel_id: str, session_id: str, snapshot_ids: Iterable[str]) -> None:
        """Record that a kernel is about to run in a far session whose lease is not known yet.

        If the session differs from the former one, the kernel's snapshots (`snapshot_ids`) still belong to the former.
        """

        def begin(known: _File) -> _File:
            lease = self._in(known, kernel_id)
            fetched = known.fetched
            if lease.session_id != session_id:
                fetched = dict.fromkeys(snapshot_ids, lease.session_id) | fetched
                lease = KernelLease(session_id)
            lease = msgspec.structs.replace(lease, is_doubtful=True)
            return _File(known.kernels | {kernel_id: lease}, fetched)

        self._change(begin)

    def note(self, kernel_id: str, lease: KernelLease) -> None:
        """Record the lease of a kernel."""
        self._change(
            lambda known: msgspec.structs.replace(known, kernels=known.kernels | {kernel_id: lease})
        )

    def branch(self, kernel_id: str, used: KernelLease) -> bool:
        """Begin a new far session for a kernel; return False if its lease is no longer the one `used`."""
        begun = False

        def begin(known: _File) -> _File:
            nonlocal begun
            begun = self._in(known, kernel_id) == used
            own = KernelLease(str(uuid.uuid4()))
            if not begun:
                return known
            return msgspec.structs.replace(known, kernels=known.kernels | {kernel_id: own})

        self._change(begin)
        return begun

    @staticmethod
    def _in(known: _File, kernel_id: str) -> KernelLease:
        return known.kernels.get(kernel_id) or KernelLease(kernel_id)

    def _change(self, change: Callable[[_File], _File]) -> None:
        change_records(self._path, self._read, change)

    def _read(self) -> _File:
        with store_errors(self._path.parent):
            try:
                found = decoding.from_json(self._path.read_bytes(), _File)
            except FileNotFoundError:
                return _File()
            except msgspec.DecodeError as error:
                raise _damaged(self._path) from error
        sessions = [*found.fetched.values(), *(one.session_id for one in found.kernels.values())]
        if not all(map(ids.is_id, sessions)):
            raise _damaged(self._path)
        return found


def _damaged(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is damaged, so it is not known which sessions of the remote this machine runs.",
        hint="Remove the file; then each kernel here goes on in the session that has the kernel's id.",
    )
