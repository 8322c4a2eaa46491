"""The leases of this daemon in one remote. Every method but `is_sure` is called by the one thread of that remote."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from ...errors import (
    AccessDenied,
    FarObjectMissing,
    GpuCkptError,
    SessionHeld,
    SessionLost,
    StoreUnavailable,
)
from ...remote.lease_objects import Leases, held
from ...remote.remote_list import state_folder
from ...remote.remote_sessions import BRANCHED, Sessions, Tenure, require
from ...remote.retries import Retries
from ...wire.remote_records import Remote
from . import remote_keys
from .kept_leases import Reservations
from .lease_file import KernelLease, LeaseFile

#: The number of heartbeats between two reads of the far sessions, which take one request each: about ten minutes.
_LOOK_BEATS = 20

_Answer = TypeVar("_Answer")

#: A callback for a lost session: the remote, the kernel's id, the lease that it had, and the error with the reason.
OnLost = Callable[[Remote, str, KernelLease, GpuCkptError], None]


class Needs(NamedTuple):
    """Kernels by their needs: those that run, those of them that have far snapshots, and others whose leases are kept."""

    running: frozenset[str] = frozenset()
    claiming: frozenset[str] = frozenset()
    keeping: frozenset[str] = frozenset()


class Waiting:
    """A flag for a lease that a caller waits for. Whoever decides it first wins: the answer, or the caller that gives up."""

    def __init__(self) -> None:
        self._lock, self._is_decided = threading.Lock(), False

    def decide(self) -> bool:
        """Decide the flag; return False if it was decided before."""
        with self._lock:
            is_first, self._is_decided = not self._is_decided, True
            return is_first


class LeasesAtRemote:
    """The leases in one remote in its current configuration. Methods raise what `Bucket` raises.

    `highest_here`: returns the highest number of a kernel's snapshots on this machine.
    """

    def __init__(
        self,
        data_dir: Path,
        remote: Remote,
        daemon_id: str,
        host_name: str,
        life_seconds: float,
        reserved: Reservations,
        stop: threading.Event,
        place: str,
        highest_here: Callable[[str], int],
    ) -> None:
        self._data_dir, self.remote = data_dir, remote
        self._daemon_id, self._host_name = daemon_id, host_name
        self._life_seconds, self._reserved = life_seconds, reserved
        self._stop, self._place, self._highest_here = stop, place, highest_here
        self._file = LeaseFile(state_folder(data_dir, remote.name))
        self._leases: Leases | None = None
        self._sessions: Sessions | None = None
        self._may_write = True
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
        waiting: Waiting,
    ) -> list[str]:
        """Get the lease of a far session for a kernel, which goes on in it; return warnings.

        `known`: the kernel's recorded lease. If the caller has given up `waiting`, the kernel may run already; then it goes on in the
        session only if nobody else has had it meanwhile. Raises SessionHeld, FarObjectMissing.
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
        if not waiting.decide() and was_away:
            leases.release(session_id, tenure)  # `tend` finds out that this is a branch
            return []
        self._note(kernel_id, session_id, tenure)
        if known.is_held and not is_same and known.daemon_id == self._daemon_id:
            leases.release(known.session_id, Tenure(known.daemon_id, known.term))
        if was_away:
            return [
                f"Another machine has gone on with this session since it was here last: remote {self.remote.name} has newer"
                " snapshots of it."
            ]
        return []

    def warning_of(self, session_id: str) -> str:
        """Return a sentence that says who runs a far session now; empty if nobody else does."""
        leases, sessions = self._opened()
        session = sessions.get(session_id)
        lease = session.lease
        if lease is not None and self._is_of_this_place(lease.daemon_id):
            return ""
        if lease is not None and self._may_write:
            lease = self._guarded(lambda: leases.holder(session))
        return (
            f"{held(session, lease).message} It is fetched only with --take-over." if lease else ""
        )

    def offer(self, session_id: str) -> bool:
        """Mark a far session as moved; return False while this daemon has its lease. Raises FarObjectMissing."""
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
        leases, _ = self._opened()
        if not self._may_write:
            return
        if own:
            self._guarded(leases.beat)
            self._beats += 1
        if self._beats % _LOOK_BEATS == 0:
            self._look_at(own, on_lost)
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
        return one.is_held and one.daemon_id == self._daemon_id

    def _look_at(self, own: Mapping[str, KernelLease], on_lost: OnLost) -> None:
        """Find the leases that other machines took over without a trace in the heartbeat."""
        _, sessions = self._opened()
        self._check(
            own, lambda session_id, tenure: require(sessions.get(session_id), tenure), on_lost
        )

    def _check(
        self,
        own: Mapping[str, KernelLease],
        check: Callable[[str, Tenure], None],
        on_lost: OnLost,
    ) -> None:
        """Call `check` with the far session and the tenure of each kernel; handle those that it finds lost or gone."""
        for kernel_id, one in own.items():
            try:
                check(one.session_id, Tenure(one.daemon_id, one.term))
            except SessionLost as error:
                on_lost(self.remote, kernel_id, one, error)
            except FarObjectMissing:
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
        except FarObjectMissing:
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
        if not self._reserved.unless_kept(kernel_id, lambda: self._file.note(kernel_id, released)):
            return
        try:
            leases.release(one.session_id, Tenure(one.daemon_id, one.term))
        except BaseException:
            if self._file.of(kernel_id) == released:
                self._file.note(kernel_id, one)
            raise

    def _guarded(self, work: Callable[[], _Answer]) -> _Answer:
        """Return what `work` returns. After AccessDenied the next call opens the remote anew, since credentials may have changed."""
        try:
            return work()
        except AccessDenied:
            self._leases = self._sessions = None
            raise

    def _opened(self) -> tuple[Leases, Sessions]:
        if self._stop.is_set() and self._leases is None:
            raise StoreUnavailable("The daemon is exiting.")
        if self._leases is None or self._sessions is None:
            retries = Retries.while_somebody_waits(self._stop)
            opened = remote_keys.opened(self._data_dir, self.remote, retries)
            only = opened.key.public.only_machine
            self._may_write = only in {"", remote_keys.machine_id(self._data_dir)}
            seal = opened.key.seal
            self._sessions = Sessions(opened.bucket, seal, opened.seen)
            self._leases = Leases(
                opened.bucket,
                seal,
                self._sessions,
                self._daemon_id,
                host_name=self._host_name,
                life_seconds=self._life_seconds,
            )
            # An earlier object for this remote may have written the last heartbeat.
            self._leases.in_doubt = any(map(self._is_own, self._file.all().values()))
        return self._leases, self._sessions

    def _note(self, kernel_id: str, session_id: str, tenure: Tenure) -> None:
        """Record the lease of a kernel, and which of its snapshots will have been made in this term."""
        held = KernelLease(
            session_id, tenure.daemon_id, tenure.term, is_held=True, place=self._place
        )
        highest = max(tenure.highest, self._highest_here(kernel_id))
        self._file.note(kernel_id, self._file.of(kernel_id).renewed(held, highest))

    def _is_of_this_place(self, daemon_id: str) -> bool:
        """Return whether the lease file knows a daemon as one of this place. It is this daemon, or has ended: a place has one at a time."""
        known = self._file.all().values()
        return any((one.daemon_id, one.place) == (daemon_id, self._place) for one in known)
