"""The leases of this daemon in remotes. While a kernel runs here, the daemon has the lease of its session: no other machine may run it.

A lease is requested before a session is fetched, before one of its kernels is resumed (`DaemonLeases`), and after a running kernel's
first snapshot was uploaded (`LeaseRenewal`). It is released when the kernel does not run and all its snapshots are uploaded. A remote
that does not answer delays no kernel: it runs without a lease. Its uploads are checked against its last known lease, and if another
machine has had the session since, the kernel becomes a branch (`LostLeases`).

A remote session has the id of its kernel. When another machine has taken it over, what is saved here is a branch from then on, in a remote
session with an id of its own. A file for each remote (`LeaseFile`) records the remote session of each kernel and the leases. Daemons of
several hosts may share it; each kernel belongs to one of them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from ...errors import (
    AccessDenied,
    ConfigurationError,
    ErrorRecord,
    GpuCkptError,
    RemoteObjectMissing,
    SessionHeld,
    SessionLost,
    StoreUnavailable,
    record_of,
)
from ...remote.lease_objects import LIFE_SECONDS, Leases, ahead, held
from ...remote.remote_list import Remotes, state_folder
from ...remote.remote_sessions import BRANCHED, Lease, Sessions, Tenure, require
from ...remote.retries import Retries
from ...store.faults import store_errors
from ...wire import decoding, ids
from ...wire.manifest_records import SnapshotInfo
from ...wire.place import Place
from ...wire.protocol import OwnerKind, SaveRequest
from ...wire.remote_records import Remote
from ...wire.snapshot_order import next_number
from ...wire.states import ALIVE, KernelState
from ..kernels import taken_over
from ..kernels.kernel_records import KernelRecord
from ..kernels.kernels import Kernels, ManagedKernel
from ..kernels.machine import Machine
from ..kernels.verbs import Verbs
from ..kernels.whole_files import change_records
from ..repeating import Tasks
from . import remote_keys
from .upload_queue import read_uploaded, record_path

#: How long a resume from this machine's own store waits for the answer of a remote.
WAIT_SECONDS = 5.0
#: How long a lease is kept for a session that was fetched but not resumed yet.
KEEP_SECONDS = 900.0
#: The shortest time for which a lease is kept for a kernel that is about to run.
_BEGIN_SECONDS = 60.0
#: The number of heartbeats within a lease's life.
_BEATS = 4
#: The number of heartbeats between two reads of the remote sessions, which take one request each: about ten minutes.
_LOOK_BEATS = 20
#: The time limit for the last releases when the daemon exits.
_LEAVE_SECONDS = 5.0
#: The number of former terms that are kept. Snapshots are uploaded long before as many leases have been granted.
_TERMS = 100

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class KernelLease(msgspec.Struct, frozen=True):
    """A kernel's remote session, and the last lease of it that was granted here; `term` 0: none was granted.

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

    def is_held_by(self, daemon_id: str, session_id: str) -> bool:
        """Return whether a daemon has the lease of this remote session."""
        return self.is_held and (self.daemon_id, self.session_id) == (daemon_id, session_id)

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
    #: The remote sessions of snapshots that are not in the present remote session of their kernel, by the snapshot's id.
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
        """Return the ids of the remote sessions that may list a snapshot, the likeliest first."""
        known = self._read()
        goes_on = self._in(known, info.kernel_id).session_id
        found = [known.fetched.get(info.snapshot_id), goes_on, info.kernel_id]
        return list(dict.fromkeys(one for one in found if one))

    def session_to_go_on(self, kernel_id: str, snapshot_id: str) -> str:
        """Return the id of the remote session in which a kernel goes on if it is resumed from a snapshot."""
        known = self._read()
        return known.fetched.get(snapshot_id) or self._in(known, kernel_id).session_id

    def going_on_in(self, session_id: str) -> set[str]:
        """Return the kernels that go on in a remote session: the recorded ones, else an unrecorded kernel of the same id."""
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

    def to_upload(self, info: SnapshotInfo) -> tuple[KernelLease, str, Tenure | None, int]:
        """Return the lease of a snapshot's kernel, the remote session that will list the snapshot, the tenure to check then, and the term.

        The term is that in which the snapshot was made.
        """
        known = self._read()
        lease = self._in(known, info.kernel_id)
        session_id = known.fetched.get(info.snapshot_id, lease.session_id)
        if session_id != lease.session_id:
            return lease, session_id, None, 0
        return lease, session_id, lease.tenure, lease.term_of(info.number)

    def begin(self, kernel_id: str, session_id: str, snapshot_ids: Iterable[str]) -> None:
        """Record that a kernel is about to run in a remote session whose lease is not known yet.

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
        """Begin a new remote session for a kernel; return False if its lease is no longer the one `used`."""
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


class Reservations:
    """The kernels whose leases are kept for a while although they do not run, by id. Thread-safe.

    Its lock orders a release and a concurrent resume.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The end of each reservation, on the monotonic clock.
        self._until: dict[str, float] = {}

    def keep(self, kernel_id: str, seconds: float) -> None:
        """Keep a kernel's lease for `seconds` from now; on return an earlier release is already in the lease file."""
        with self._lock:
            self._until[kernel_id] = time.monotonic() + seconds

    def keep_longer(self, kernel_id: str, seconds: float) -> None:
        """Keep a kernel's lease for at least `seconds` from now."""
        with self._lock:
            until = time.monotonic() + seconds
            self._until[kernel_id] = max(until, self._until.get(kernel_id, until))

    def end(self, kernel_id: str) -> None:
        """End the reservation of a kernel, if there is one."""
        with self._lock:
            self._until.pop(kernel_id, None)

    def clear(self) -> None:
        """End all reservations."""
        with self._lock:
            self._until.clear()

    def all(self) -> set[str]:
        """Return the kernels whose leases are kept now."""
        with self._lock:
            now = time.monotonic()
            self._until = {one: until for one, until in self._until.items() if until > now}
            return set(self._until)

    def unless_kept(self, kernel_id: str, note: Callable[[], None]) -> bool:
        """Call `note`, which records a release, unless the kernel's lease is kept; return whether it was called."""
        with self._lock:
            if self._until.get(kernel_id, 0.0) > time.monotonic():
                return False
            note()
            return True


#: A callback for a lost session: the remote, the kernel's id, the lease that it had, and the error with the reason.
OnLost = Callable[[Remote, str, KernelLease, GpuCkptError], None]
#: The snapshots that a remote has or will get, by id; True: the remote has it.
UploadsThere = Mapping[str, tuple[SnapshotInfo, bool]]


class Needs(NamedTuple):
    """Kernels by their needs: those that run, those of them that have remote snapshots, and others whose leases are kept."""

    running: frozenset[str] = frozenset()
    claiming: frozenset[str] = frozenset()
    keeping: frozenset[str] = frozenset()


class LeasesAtRemote:
    """The leases of a daemon in one remote in its current configuration. Methods raise what `Bucket` raises.

    Every method but `is_sure` is called by the one thread of that remote.
    """

    def __init__(self, daemon: DaemonLeases, remote: Remote) -> None:
        self._daemon, self.remote = daemon, remote
        self._file = daemon.file_of(remote)
        self._leases: Leases | None = None
        self._sessions: Sessions | None = None
        self._may_write, self._machine_id = True, ""
        self._beats = 0

    @property
    def is_sure(self) -> bool:
        """Return whether no lease of this daemon can have expired; a user may still have taken one over. In any thread."""
        leases = self._leases
        return leases is not None and leases.is_sure

    def claim(
        self,
        kernel_id: str,
        session_id: str,
        take_over: bool,
        known: KernelLease,
        undecided: threading.Lock,
    ) -> list[str]:
        """Get the lease of a remote session for a kernel, which goes on in it; return warnings.

        `known`: the kernel's recorded lease. `undecided`: the caller acquires it when it gives up. Then the kernel may run already, and
        goes on in the session only if nobody else has had it meanwhile. Raises SessionHeld, RemoteObjectMissing.
        """
        leases, sessions = self._opened()
        is_same = known.session_id == session_id
        if not self._may_write:
            session = sessions.get(session_id)
            if session.lease is not None and not take_over:
                raise held(session, session.lease)
            return [
                f"Only the machine that made remote {self.remote.name} may write to it: others are not told that the session"
                " runs here."
            ]
        heir_of = known.daemon_id if is_same and known.is_held else ""
        tenure = self._guarded(
            lambda: leases.claim(session_id, heir_of=heir_of, take_over=take_over)
        )
        was_away = bool(is_same and known.term and tenure.term > known.term + 1)
        if not undecided.acquire(blocking=False) and was_away:
            leases.release(session_id, tenure)  # `tend` finds out that this is a branch
            return []
        self._note(kernel_id, session_id, tenure)
        if known.is_held and not is_same and known.daemon_id == self._daemon.daemon_id:
            leases.release(known.session_id, Tenure(known.daemon_id, known.term))
        return []

    def require_newest(self, session_id: str, known: KernelLease, ids: set[str]) -> None:
        """Raise SessionAhead if the newest snapshot is another machine's, and not among those that this machine has (`ids`)."""
        if known.session_id != session_id:
            return  # it goes on in the session of a fetched snapshot
        session = self._opened()[1].get(session_id)
        newest = session.listed[0] if session.listed else None
        # A kernel that another machine runs now is refused by the lease.
        if newest is None or session.lease is not None:
            return
        if newest.snapshot_id not in ids and newest.machine_id != self._machine_id:
            raise ahead(session, self.remote.name)

    def lease_elsewhere(self, session_id: str) -> Lease | None:
        """Return the lease of the other machine that runs a remote session now; None if none does."""
        leases, sessions = self._opened()
        session = sessions.get(session_id)
        lease = session.lease
        if lease is not None and self._is_of_this_place(lease.daemon_id):
            return None
        if lease is not None and self._may_write:
            lease = self._guarded(lambda: leases.holder(session))
        return lease

    def offer(self, session_id: str) -> bool:
        """Mark a remote session as moved; return False while this daemon has its lease. Raises RemoteObjectMissing."""
        leases, sessions = self._opened()
        if not self._may_write:
            return sessions.get(session_id).lease is None
        return self._guarded(lambda: leases.offer(session_id))

    def tend(self, needs: Needs, on_lost: OnLost) -> None:
        """Renew this daemon's leases, get those that running kernels lack, and release those that are not needed."""
        known = self._file.all()
        own = {name: one for name, one in known.items() if self._is_own(one)}
        missing = sorted(needs.claiming - own.keys())
        if not own and not missing:
            if self._leases is not None and self._leases.is_beating:
                self._leases.end()
            return
        leases, sessions = self._opened()
        if not self._may_write:
            return
        if own:
            self._guarded(leases.beat)
            self._beats += 1
        if self._beats % _LOOK_BEATS == 0:
            # Other machines may have taken leases over without a trace in the heartbeat.
            self._check(own, lambda name, tenure: require(sessions.get(name), tenure), on_lost)
        if leases.in_doubt:
            self._check(own, leases.keep, on_lost)
            leases.in_doubt = False
        for kernel_id in missing:
            self._claim_running(kernel_id, on_lost)
        own = {name: one for name, one in self._file.all().items() if self._is_own(one)}
        for kernel_id in own.keys() - needs.running - needs.keeping:
            self._release(kernel_id)
        if not any(map(self._is_own, self._file.all().values())) and leases.is_beating:
            leases.end()

    def _is_own(self, one: KernelLease) -> bool:
        return one.is_held and one.daemon_id == self._daemon.daemon_id

    def _check(
        self,
        own: Mapping[str, KernelLease],
        check: Callable[[str, Tenure], None],
        on_lost: OnLost,
    ) -> None:
        """Call `check` with the remote session and the tenure of each kernel, and handle its errors for lost and missing sessions."""
        for kernel_id, one in own.items():
            try:
                check(one.session_id, Tenure(one.daemon_id, one.term))
            except SessionLost as error:
                on_lost(self.remote, kernel_id, one, error)
            except RemoteObjectMissing:
                self._file.note(kernel_id, KernelLease(one.session_id))

    def _claim_running(self, kernel_id: str, on_lost: OnLost) -> None:
        """Get the lease of a kernel that runs already. If another machine has had it since, the kernel here is a branch."""
        leases, sessions = self._opened()
        known = self._file.of(kernel_id)
        try:
            if not known.term:
                sessions.get(known.session_id)  # a branch has none before its first upload
            heir_of = known.daemon_id if known.is_held else ""
            tenure = self._guarded(lambda: leases.claim(known.session_id, heir_of=heir_of))
        except RemoteObjectMissing:
            return
        except SessionHeld as error:
            error.hint = BRANCHED
            on_lost(self.remote, kernel_id, known, error)
            return
        if known.term and tenure.term > known.term + 1:
            leases.release(known.session_id, tenure)
            lost = SessionLost(
                f"Another machine has gone on with session {known.session_id} meanwhile.",
                hint=BRANCHED,
            )
            on_lost(self.remote, kernel_id, known, lost)
            return
        self._note(kernel_id, known.session_id, tenure)

    def _release(self, kernel_id: str) -> None:
        """Release a lease, unless the kernel is about to be resumed. The file says so first, so that a resume asks for it anew."""
        leases, _ = self._opened()
        one = self._file.of(kernel_id)
        released = msgspec.structs.replace(one, is_held=False, is_doubtful=False)
        if not self._daemon.reserved.unless_kept(
            kernel_id, lambda: self._file.note(kernel_id, released)
        ):
            return
        try:
            leases.release(one.session_id, Tenure(one.daemon_id, one.term))
        except BaseException:
            if self._file.of(kernel_id) == released:
                self._file.note(kernel_id, one)
            raise

    def _guarded(self, work: Callable[[], _Answer]) -> _Answer:
        """Call `work` and return its result. After AccessDenied the next call opens the remote anew, since credentials may have changed."""
        try:
            return work()
        except AccessDenied:
            self._leases = self._sessions = None
            raise

    def _opened(self) -> tuple[Leases, Sessions]:
        if self._daemon.is_over.is_set() and self._leases is None:
            raise StoreUnavailable("The daemon is exiting.")
        if self._leases is None or self._sessions is None:
            retries = Retries.while_somebody_waits(self._daemon.is_over)
            opened = remote_keys.opened(self._daemon.data_dir, self.remote, retries)
            self._may_write, self._sessions = opened.may_write, opened.sessions
            self._machine_id = opened.machine_id
            self._leases = Leases(
                opened.bucket,
                opened.key.seal,
                self._sessions,
                self._daemon.daemon_id,
                host_name=self._daemon.host_name,
                life_seconds=self._daemon.life_seconds,
            )
            # An earlier object for this remote may have written the last heartbeat.
            self._leases.in_doubt = any(map(self._is_own, self._file.all().values()))
        return self._leases, self._sessions

    def _note(self, kernel_id: str, session_id: str, tenure: Tenure) -> None:
        """Record the lease of a kernel, and which of its snapshots will have been made in this term."""
        held = KernelLease(
            session_id, tenure.daemon_id, tenure.term, is_held=True, place=self._daemon.place
        )
        highest = max(tenure.highest, self._daemon.highest_here(kernel_id))
        self._file.note(kernel_id, self._file.of(kernel_id).renewed(held, highest))

    def _is_of_this_place(self, daemon_id: str) -> bool:
        """Return whether the lease file knows a daemon as one of this place. It is this daemon, or has ended: a place has one at a time."""
        known = self._file.all().values()
        return any((one.daemon_id, one.place) == (daemon_id, self._daemon.place) for one in known)


class DaemonLeases:
    """The leases in all remotes, as far as fetches and resumes need them. Its methods may be called in any thread, except `wake`.

    `life_seconds`: how long a lease lasts after the last heartbeat.
    """

    def __init__(
        self,
        data_dir: Path,
        machine: Machine,
        kernels: Kernels,
        place: Place,
        *,
        life_seconds: float = LIFE_SECONDS,
    ) -> None:
        self.data_dir, self._machine, self._kernels = data_dir, machine, kernels
        self.place, self.life_seconds = place.key, life_seconds
        self.daemon_id, self.host_name = uuid.uuid4().hex, socket.gethostname()
        self._lock = threading.Lock()
        self._at: dict[str, LeasesAtRemote] = {}
        #: One thread for each remote: requests to one remote run one after the other, and delay no other remote.
        self._threads: dict[str, ThreadPoolExecutor] = {}
        #: Kernels that are being fetched or resumed.
        self.reserved = Reservations()
        self.is_over = threading.Event()
        #: Set when other leases may be needed than before.
        self.woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def are_in_use(self) -> bool:
        """Return whether a remote was asked for a lease, and may be asked again."""
        return bool(self._at) and not self.is_over.is_set()

    def file_of(self, remote: Remote) -> LeaseFile:
        """Return the file that records the leases in a remote."""
        return LeaseFile(state_folder(self.data_dir, remote.name))

    def wake(self) -> None:
        """Let the renewal check soon which leases are needed. On the event loop's thread."""
        self.woken.set()

    def close(self) -> None:
        """End all requests to remotes, without waiting for threads whose remote does not answer."""
        self.is_over.set()
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    def claim_to_fetch(
        self, remote: Remote, kernel_id: str, session_id: str, *, take_over: bool
    ) -> list[str]:
        """Get the lease of a remote session before it is fetched, and keep it until `fetched`; return warnings.

        If its kernel runs here, or goes on in another session, the lease is not requested now but before a resume. Raises
        SessionHeld, RemoteObjectMissing, and what `Bucket` raises.
        """
        known = self.file_of(remote).of(kernel_id)
        kernel = self._kernels.find(kernel_id)
        if kernel is not None and kernel.state in ALIVE:
            return []  # the renewal gets the lease of a running kernel, and a fetch does not change its session
        if known.session_id != session_id and self._machine.snapshots(kernel_id):
            return []  # the kernel stays in its other session until it is resumed from the fetched snapshot
        self.reserved.keep(kernel_id, float("inf"))
        # Another host with the same home may run a kernel that this daemon does not know. A former daemon of this place does not.
        if kernel is None and known.place != self.place:
            known = msgspec.structs.replace(known, is_held=False)
        try:
            asked = self.ask(
                remote,
                lambda at: at.claim(kernel_id, session_id, take_over, known, threading.Lock()),
            )
            return asked.result()
        except BaseException:
            self.fetched(kernel_id, keep_seconds=0.0)
            raise

    def fetched(self, kernel_id: str, *, keep_seconds: float = KEEP_SECONDS) -> None:
        """Keep the lease of a fetched session for `keep_seconds`, or for as long as its kernel runs."""
        self.reserved.keep(kernel_id, keep_seconds)
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self.wake)

    def lease_elsewhere(self, remote: Remote, session_id: str) -> Lease | None:
        """Return the lease of the other machine that runs a remote session now; None if none does. Raises what `Bucket` raises."""
        return self.ask(remote, lambda at: at.lease_elsewhere(session_id)).result()

    def require(self, kernel_id: str, snapshot_id: str, *, take_over: bool) -> list[str]:
        """Get the leases that a kernel needs to be resumed from a snapshot; return warnings. Raises SessionHeld.

        Remotes that do not answer within `WAIT_SECONDS` are not waited for.
        """
        warnings: list[str] = []
        remotes, ids = self._remotes_of(kernel_id)
        if remotes:
            # The lease file is read after this: a release that was decided before is recorded in it, and no later one is decided.
            self.reserved.keep_longer(kernel_id, _BEGIN_SECONDS)
        for remote in remotes:
            try:
                warnings += self._require_at(remote, kernel_id, snapshot_id, ids, take_over)
            except SessionHeld:
                raise
            except (TooLate, GpuCkptError) as error:
                why = error.message if isinstance(error, GpuCkptError) else "It does not answer."
                warnings.append(
                    f"Remote {remote.name} could not be asked whether another machine runs this session: {why}"
                    " If one does, what is saved here becomes a branch of it there."
                )
        if self._kernels.lost_notebooks.is_about(kernel_id) and self._has_back(kernel_id, remotes):
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._forget_lost, kernel_id)
        return warnings

    def highest_number(self, kernel_id: str) -> int:
        """Return the highest number of a kernel's snapshots that its remote sessions had when their leases were granted; never raises."""
        highest = 0
        try:
            for remote in Remotes(self.data_dir).all():
                known = self.file_of(remote).of(kernel_id)
                highest = max(highest, known.highest)
        except GpuCkptError as error:
            _log.warning("the leases of kernel %s cannot be read: %s", kernel_id, error)
        return highest

    def next_number(self, kernel_id: str) -> int:
        """Return a number above those of all of a kernel's snapshots that are known; never raises."""
        return next_number(self.highest_here(kernel_id), self.highest_number(kernel_id))

    def highest_here(self, kernel_id: str) -> int:
        """Return the highest number of a kernel's snapshots that is known here; never raises."""
        kernel = self._kernels.find(kernel_id)
        known = [kernel.record.number] if kernel is not None else []
        # Where the list cannot be read, earlier snapshots count as made in the new term, which still comes after what others made.
        with suppress(GpuCkptError):
            known += [one.info.number for one in self._machine.store.listed(kernel_id)]
        return max(known, default=0)

    def resumed(self, kernel_id: str) -> None:
        """End the reservation of a kernel that `require` or a fetch made: the kernel runs, and that alone keeps its leases."""
        self.reserved.end(kernel_id)

    def _require_at(
        self,
        remote: Remote,
        kernel_id: str,
        snapshot_id: str,
        ids: set[str],
        take_over: bool,
    ) -> list[str]:
        file = self.file_of(remote)
        known = file.of(kernel_id)
        # A branch begins with a snapshot of another kernel, which says nothing of its own session.
        session_id = file.session_to_go_on(kernel_id, snapshot_id if snapshot_id in ids else "")
        if self._is_sure(remote, known, session_id):
            return []
        file.begin(kernel_id, session_id, ids)
        undecided = threading.Lock()

        def claim(at: LeasesAtRemote) -> list[str]:
            if not take_over:
                at.require_newest(session_id, known, ids)
            return at.claim(kernel_id, session_id, take_over, known, undecided)

        asked = self.ask(remote, claim)
        try:
            try:
                return asked.result(WAIT_SECONDS)
            except TooLate:
                if undecided.acquire(blocking=False):
                    raise
                return asked.result()
        except SessionHeld:
            file.note(kernel_id, known)
            raise
        except RemoteObjectMissing:
            file.note(kernel_id, msgspec.structs.replace(known, is_held=False))
            return []

    def _has_back(self, kernel_id: str, remotes: list[Remote]) -> bool:
        """Return whether this daemon has the leases of a kernel's own remote sessions, and not those of branches."""
        known = [self.file_of(one).of(kernel_id) for one in remotes]
        return bool(known) and all(one.is_held_by(self.daemon_id, kernel_id) for one in known)

    def _forget_lost(self, kernel_id: str) -> None:
        kernel = self._kernels.find(kernel_id)
        if kernel is not None and not kernel.doomed:
            taken_over.forget(self._kernels, kernel)

    def _is_sure(self, remote: Remote, known: KernelLease, session_id: str) -> bool:
        """Return whether this daemon surely has the lease, so that the remote need not be asked."""
        with self._lock:
            at = self._at.get(remote.name)
        is_own = known.is_held_by(self.daemon_id, session_id)
        return is_own and at is not None and at.remote.place == remote.place and at.is_sure

    def _remotes_of(self, kernel_id: str) -> tuple[list[Remote], set[str]]:
        """Return the remotes in which a kernel has a session, as far as this machine knows, and the ids of the kernel's snapshots."""
        try:
            remotes = Remotes(self.data_dir).all()
            if not remotes:
                return [], set()
            ids = {one.snapshot_id for one in self._machine.snapshots(kernel_id)}
        except GpuCkptError as error:
            _log.warning("kernel %s goes on without leases: %s", kernel_id, error)
            return [], set()
        return [one for one in remotes if self._is_there(one, kernel_id, ids)], ids

    def _is_there(self, remote: Remote, kernel_id: str, snapshot_ids: set[str]) -> bool:
        uploaded = read_uploaded(record_path(self.data_dir, remote.name)).snapshots
        with suppress(GpuCkptError):
            known = self.file_of(remote).of(kernel_id)
            return bool(known.term or snapshot_ids.intersection(uploaded))
        return True

    def ask(self, remote: Remote, question: Callable[[LeasesAtRemote], _Answer]) -> Future[_Answer]:
        """Call `question` in the remote's thread, after earlier questions."""
        with self._lock:
            at = self._at.get(remote.name)
            if at is None or at.remote != remote:
                at = self._at[remote.name] = LeasesAtRemote(self, remote)
            threads = self._threads.get(remote.name)
            if threads is None:
                threads = ThreadPoolExecutor(1, thread_name_prefix=f"leases {remote.name}")
                self._threads[remote.name] = threads
        return threads.submit(question, at)


class LeaseRenewal:
    """The task that renews leases. On the event loop's thread.

    `uploads`: returns the uploads to each remote, by its name. `on_lost`: called in a thread for a kernel whose remote session another
    machine has taken over.
    """

    def __init__(
        self,
        leases: DaemonLeases,
        kernels: Kernels,
        uploads: Callable[[], Awaitable[Mapping[str, UploadsThere]]],
        on_lost: OnLost,
    ) -> None:
        self._leases, self._kernels, self._uploads = leases, kernels, uploads
        self._on_lost = on_lost
        #: The needs that each remote was told last.
        self._told: dict[str, Needs] = {}
        self._tasks = Tasks()

    def start(self) -> None:
        """Start renewing leases, also for kernels that run already."""
        self._tasks.start(self._run())

    async def close(self) -> None:
        """Release the leases that are not needed; return soon even if a remote does not answer."""
        await self._tasks.cancel()
        if self._leases.are_in_use:
            self._leases.reserved.clear()
            with suppress(TimeoutError, GpuCkptError):
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await self._look(is_due=True)

    async def _run(self) -> None:
        due = time.monotonic()
        while True:
            self._leases.woken.clear()
            now = time.monotonic()
            is_due = now >= due
            if is_due:
                due = now + self._leases.life_seconds / _BEATS
            try:
                await self._look(is_due=is_due)
            except GpuCkptError as error:
                _log.warning("leases were not updated: %s", error)
            except Exception:
                _log.exception("leases were not updated")
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - time.monotonic())):
                    await self._leases.woken.wait()

    async def _look(self, *, is_due: bool) -> None:
        """Renew, claim and release leases in all remotes at once; without `is_due` only in those where the needs have changed."""
        remotes = await asyncio.to_thread(Remotes(self._leases.data_dir).all)
        if not remotes:
            return
        found = await self._uploads()
        asked = []
        for remote in remotes:
            needs = self._needs(found.get(remote.name, {}))
            if is_due or needs != self._told.get(remote.name):
                self._told[remote.name] = needs
                tend = partial(LeasesAtRemote.tend, needs=needs, on_lost=self._on_lost)
                one = asyncio.wrap_future(self._leases.ask(remote, tend))
                one.add_done_callback(partial(self._note_failure, remote.name))
                asked.append(one)
        if not asked:
            return
        # A remote that does not answer gets its next request after the answer, because its thread does one after the other.
        await asyncio.wait(asked, timeout=self._leases.life_seconds / _BEATS)

    def _note_failure(self, remote: str, one: asyncio.Future[None]) -> None:
        """Log the error of a renewal, which may come long after `_look` has returned, and let the next `_look` ask again."""
        if not one.cancelled() and (error := one.exception()):
            _log.warning("leases in remote %s were not renewed: %s", remote, error)
            self._told.pop(remote, None)

    def _needs(self, uploads: UploadsThere) -> Needs:
        """Return which kernels need or keep a lease in a remote."""
        has = {info.kernel_id for info, there in uploads.values() if there}
        waits = {info.kernel_id for info, there in uploads.values() if not there}
        running, keeping = set(), set(waits)
        for kernel in self._kernels:
            state, snapshot_id = kernel.state, kernel.record.snapshot_id
            if state in ALIVE or state is KernelState.RESUMING:
                running.add(kernel.kernel_id)
            elif snapshot_id and not uploads.get(snapshot_id, (None, False))[1]:
                keeping.add(kernel.kernel_id)
        keeping |= self._leases.reserved.all()
        return Needs(frozenset(running), frozenset(running & has), frozenset(keeping))


class LostLeases:
    """The handler of lost leases, whoever finds them out."""

    def __init__(self, data_dir: Path, kernels: Kernels, verbs: Verbs) -> None:
        self._data_dir, self._kernels, self._verbs = data_dir, kernels, verbs
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()

    def note(self, remote: Remote, kernel_id: str, used: KernelLease, error: GpuCkptError) -> None:
        """Make a kernel whose session another machine has taken over a branch, in a new remote session, and tell the user. In any thread.

        If its launch asks for that (`pauses`), the kernel is suspended.
        """
        if not LeaseFile(state_folder(self._data_dir, remote.name)).branch(kernel_id, used):
            return
        _log.warning("remote %s: kernel %s: %s %s", remote.name, kernel_id, error, error.hint)
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._tell, kernel_id, record_of(error))

    def _tell(self, kernel_id: str, error: ErrorRecord) -> None:
        kernel = self._kernels.find(kernel_id)
        if kernel is None or kernel.doomed:
            return
        taken_over.note(self._kernels, kernel, error)
        if pauses(kernel.record) and kernel.state in ALIVE:
            self._tasks.start(self._pause(kernel, error))

    async def _pause(self, kernel: ManagedKernel, error: ErrorRecord) -> None:
        try:
            operation = self._verbs.suspend(kernel.kernel_id, SaveRequest())
            await operation.until_ended()
            if operation.error is None:
                hint = (
                    "The kernel is suspended on this machine, and nothing of it is lost. A resume continues it as a branch, in a session"
                    " of its own."
                )
                # A suspend clears the last error, but this one is why the kernel is suspended.
                command = f"`jupyter gpuckpt resume {kernel.kernel_id}` does that."
                lost = msgspec.structs.replace(error, hint=hint, command=command)
                self._kernels.update(kernel, error=lost)
                _log.warning("kernel %s is paused: %s", kernel.kernel_id, error.message)
                return
            why = operation.error.message
        except GpuCkptError as refusal:
            why = refusal.message
        _log.warning("kernel %s is not paused and runs on: %s", kernel.kernel_id, why)
        if self._kernels.find(kernel.kernel_id) is kernel and not kernel.doomed:
            self._kernels.update(kernel, error=error)


def pauses(record: KernelRecord) -> bool:
    """Return whether a kernel is suspended when another machine has taken its session over."""
    wanted = record.spec.on_lost_lease
    if wanted == "auto":
        return record.owner.kind is OwnerKind.SCRIPT
    return wanted == "pause"
