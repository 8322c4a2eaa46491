"""The leases of kernels in a data directory that several hosts may share: one remote session with its term for each kernel.

The protocol is that of remotes (`remote/lease_objects.py`); the objects are files beside the records. `kernel_records.py` gets a kernel's
lease before it writes that the kernel has a process, and releases the lease after it has written that the kernel has none.
"""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ...errors import (
    GpuCkptError,
    RemoteObjectInvalid,
    RemoteObjectMissing,
    SessionHeld,
    SessionLost,
    StoreError,
)
from ...remote.lease_objects import FOLDER as HEARTBEATS
from ...remote.lease_objects import Leases
from ...remote.remote_sessions import Facts, Lease, RemoteSession, Sessions, Tenure, require
from ...remote.shared_files import NothingSeen, Plain, SharedFiles
from ...wire.place import Place

#: How long a lease lasts after the last heartbeat.
LIFE_SECONDS = 60.0
#: The interval of heartbeats.
_BEAT_SECONDS = LIFE_SECONDS / 4
#: Heartbeats of killed daemons are removed when they are so much older than this daemon's own.
_KEEP_SECONDS = 7 * 24 * 3600.0

_ELSEWHERE = "Suspend it there; then it can be resumed here. If that machine has ended, its kernels can be taken over after a minute."


_log = logging.getLogger(__name__)


class _Known(NamedTuple):
    """This daemon's knowledge of a kernel's session; `is_held`: it has the lease."""

    term: int
    is_held: bool


class RecordLeases:
    """The leases of the daemon of `place`. Not thread-safe. Methods raise StoreUnavailable, StoreFull."""

    def __init__(self, state_dir: Path, place: Place) -> None:
        self._files = SharedFiles(state_dir / "shared")
        self._sessions = Sessions(self._files, Plain(), NothingSeen())
        self._place = place
        daemon_id = f"{place.key}-{secrets.token_hex(8)}"
        self._leases = Leases(
            self._files,
            Plain(),
            self._sessions,
            daemon_id,
            host_name=socket.gethostname(),
            life_seconds=LIFE_SECONDS,
        )
        self._known: dict[str, _Known] = {}
        self._beaten_at = float("-inf")

    def knows(self, kernel_id: str) -> bool:
        """Return whether the kernel belongs to this daemon, as far as it knows."""
        return kernel_id in self._known

    def is_held(self, kernel_id: str) -> bool:
        """Return whether this daemon has the lease of a kernel, as far as it knows."""
        known = self._known.get(kernel_id)
        return known is not None and known.is_held

    def session(self, kernel_id: str) -> RemoteSession | None:
        """Return a kernel's session; None if there is none."""
        try:
            return self._sessions.get(kernel_id)
        except RemoteObjectMissing:
            return None

    def begin(self, kernel_id: str) -> None:
        """Register a kernel of this daemon that has no process; get its lease only from a killed daemon of this place."""
        if kernel_id not in self._known:
            begun = self._begun(kernel_id)
            if begun.lease and _place_of(begun.lease.daemon_id) == self._place.key:
                self.take(kernel_id, {self._place.key})
            else:
                self._known[kernel_id] = _Known(begun.term, False)

    def have(self, kernel_id: str) -> None:
        """Ensure that this daemon has the lease of one of its kernels. Raises SessionHeld, SessionLost."""
        known = self._known.get(kernel_id)
        if known is not None and known.is_held:
            return
        begun = self._leases.begin(kernel_id, _new_term()) if known is None else None
        # A daemon of this place that was killed just after it had forgotten the kernel has left its lease.
        heir_of = "" if begun or known else self._heir_of(kernel_id, {self._place.key})
        tenure = begun or self._claim(kernel_id, heir_of)
        if known is not None and tenure.term != known.term + 1:
            self._leases.release(kernel_id, tenure)
            raise _moved(kernel_id)
        self._known[kernel_id] = _Known(tenure.term, True)

    def take(self, kernel_id: str, ended: Collection[str]) -> None:
        """Get the lease of another daemon's kernel. `ended`: keys of places whose daemons are known to have ended. Raises SessionHeld."""
        tenure = self._claim(kernel_id, self._heir_of(kernel_id, ended))
        self._known[kernel_id] = _Known(tenure.term, True)

    def _heir_of(self, kernel_id: str, ended: Collection[str]) -> str:
        """Return the daemon that has a kernel's lease, if it is one of these places, whose daemons have ended; else nothing."""
        lease = self._begun(kernel_id).lease
        return lease.daemon_id if lease and _place_of(lease.daemon_id) in ended else ""

    def inherit(self, kernel_id: str) -> None:
        """Register a kernel of this place's previous daemon, and get its lease if that daemon had it. Raises SessionHeld."""
        try:
            lease = self._begun(kernel_id).lease
        except RemoteObjectInvalid as error:
            _log.error("%s", error)  # a power cut, which ended all processes as well
            self._files.delete([f"sessions/{kernel_id}"])
            lease = None
        if lease is None:
            self.begin(kernel_id)
        else:
            self.take(kernel_id, {self._place.key})

    @contextmanager
    def checked(self, kernel_id: str) -> Iterator[None]:
        """Prevent others from getting the kernel's lease inside the block. Raises SessionLost if another daemon has had it."""
        known = self._known[kernel_id]
        with self._files.locked():
            try:
                session = self._sessions.get(kernel_id)
            except (RemoteObjectMissing, RemoteObjectInvalid) as error:
                raise _moved(kernel_id) from error
            require(session, Tenure(self._leases.daemon_id, known.term))
            yield

    def release(self, kernel_id: str) -> None:
        """Release the lease, so that other daemons can take the kernel over."""
        known = self._known[kernel_id]
        if known.is_held:
            self._leases.release(kernel_id, Tenure(self._leases.daemon_id, known.term))
            self._known[kernel_id] = known._replace(is_held=False)

    def leave(self, kernel_id: str) -> None:
        """Drop a kernel that belongs to another daemon now."""
        self._known.pop(kernel_id, None)

    def forget(self, kernel_id: str) -> None:
        """Remove the session of a kernel that has ended. Call it inside a block of `checked`."""
        self._files.delete([f"sessions/{kernel_id}"])
        self.leave(kernel_id)

    def has_moved(self, kernel_id: str) -> bool:
        """Return whether another daemon has had a kernel since this one released it."""
        known = self._known.get(kernel_id)
        if known is None or known.is_held:
            return False
        session = self.session(kernel_id)
        return session is None or session.term != known.term

    def catch_up(self, kernel_id: str) -> None:
        """Accept the present term of a kernel whose lease another daemon got and released without changing the record."""
        session = self.session(kernel_id)
        if session is not None and session.lease is None:
            self._known[kernel_id] = _Known(session.term, False)

    def moved(self) -> list[str]:
        """Return the kernels for which `has_moved` is true."""
        return [kernel_id for kernel_id in list(self._known) if self.has_moved(kernel_id)]

    def beat(self) -> dict[str, SessionLost]:
        """Write the heartbeat if it is due. If it was late, return the kernels that others have taken over, with the error for each."""
        if not self._known:
            return {}
        if time.monotonic() >= self._beaten_at + _BEAT_SECONDS or not self._leases.is_good:
            self._leases.beat()
            self._beaten_at = time.monotonic()
        lost: dict[str, SessionLost] = {}
        if self._leases.in_doubt:
            for kernel_id, known in self._known.items():
                if known.is_held:
                    try:
                        self._leases.keep(kernel_id, Tenure(self._leases.daemon_id, known.term))
                    except SessionLost as error:
                        lost[kernel_id] = error
                    except RemoteObjectMissing:
                        lost[kernel_id] = _moved(kernel_id)
            self._leases.in_doubt = False
        return lost

    def is_heard_of(self, place_key: str = "") -> bool:
        """Return whether the heartbeat of the daemon of this place is recent; without an argument, of any other place's daemon."""
        found = [one.name.partition("/")[2] for one in self._files.list(HEARTBEATS)]
        own_key = self._place.key
        return any(
            self._leases.lives(Lease(daemon_id))
            for daemon_id in found
            if (_place_of(daemon_id) == place_key if place_key else _place_of(daemon_id) != own_key)
        )

    def sweep(self) -> None:
        """Remove the heartbeats of daemons that ended long ago; never raises."""
        with suppress(StoreError):
            self._leases.beat()
            found = {one.name: one.modified for one in self._files.list(HEARTBEATS)}
            newest = max(found.values())
            old = [n for n, at in found.items() if (newest - at).total_seconds() > _KEEP_SECONDS]
            self._files.delete(old)

    def end(self) -> None:
        """Remove the heartbeat when the daemon exits, which ends its remaining leases; never raises."""
        with suppress(GpuCkptError):
            self._leases.end()

    def _begun(self, kernel_id: str) -> RemoteSession:
        return self._sessions.begin(Facts(kernel_id), _new_term())

    def _claim(self, kernel_id: str, heir_of: str = "") -> Tenure:
        try:
            return self._leases.claim(kernel_id, heir_of=heir_of)
        except SessionHeld as error:
            error.hint = _ELSEWHERE
            raise


def held(kernel_id: str, why: str, hint: str = _ELSEWHERE) -> SessionHeld:
    """Return the error for a kernel that this daemon cannot take over now, by default because another one has not released it."""
    return SessionHeld(f"Kernel {kernel_id} {why}.", hint=hint)


def are_others_heard_of(state_dir: Path, place: Place) -> bool:
    """Return whether a daemon of another place than this one runs, or was killed a moment ago."""
    observer = RecordLeases(state_dir, place)
    try:
        return observer.is_heard_of()
    finally:
        observer.end()


def _moved(kernel_id: str) -> SessionLost:
    return SessionLost(
        f"Kernel {kernel_id} was resumed or ended on another machine meanwhile.",
        hint="Suspend it there, if it runs; then it can be resumed here.",
    )


def _new_term() -> int:
    # A new kernel of a forgotten one's id must not begin with a term that another daemon remembers.
    return secrets.randbits(48)


def _place_of(daemon_id: str) -> str:
    return daemon_id.partition("-")[0]
