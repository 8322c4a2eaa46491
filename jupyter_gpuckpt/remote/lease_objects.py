"""Leases: the right of one daemon to run a remote session and write to it, so that two machines never do so at the same time.

A remote session names the daemon that holds its lease, and a term that grows with every granted lease. A daemon proves that it is alive
by one object for all its leases, `heartbeats/<daemon id>`, which it rewrites regularly. A lease ends when its daemon releases it, or
when the heartbeat is older than the lifetime that it states. Two leases of a session never overlap, unless a user takes one over:

* A daemon that wants a lease writes its own heartbeat and then reads the holder's. It compares the remote's modification times of
  both: if the holder's is older by more than its lifetime, the lease had ended before. No clock of a machine is involved.
* The holder measures its heartbeat's age with its own clock from before it sent the heartbeat, which is earlier than the remote's
  modification time. This clock continues while the machine sleeps.
* A holder whose heartbeat was late writes a heartbeat and then swaps each of its remote sessions (`keep`). If its swap comes first, the
  swap of a daemon that was about to take the lease fails. Otherwise its own swap fails, and the holder learns that it lost the lease.
* A daemon's changes to a remote session are checked against its term in the same swap (`sessions.require`), however late they come.

A user may take over a lease whose daemon is alive. That daemon's heartbeat is rewritten as a signal, so its next heartbeat fails and
it checks its leases.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, NamedTuple

import msgspec

from ..errors import RemoteObjectMissing, SessionAhead, SessionHeld, StoreUnavailable
from .objects import Objects, Sealing, Stored, Version
from .remote_sessions import Facts, Lease, RemoteSession, Sessions, Tenure, Text, named, require
from .sealing import invalid

FOLDER = "heartbeats"
LIFE_SECONDS = 120.0
#: How much older than its lifetime a heartbeat must be, in seconds: modification times are whole seconds, from several machines.
SLACK_SECONDS = 5.0
_MAX_LIFE_SECONDS = 3600.0
#: The largest object of a heartbeat that is read.
MAX_HEARTBEAT_BYTES = 64 << 10
_ATTEMPTS = 5


class Heartbeat(msgspec.Struct, frozen=True):
    """A daemon's proof that it is alive. Its age is that of the object; `number` counts the writes."""

    daemon_id: Text
    host_name: Text
    life_seconds: Annotated[float, msgspec.Meta(gt=0, le=_MAX_LIFE_SECONDS)]
    number: int = 0


class _Beaten(NamedTuple):
    """The version and modification time of this daemon's own heartbeat in the remote."""

    version: Version
    modified: datetime


def awake_and_asleep() -> float:
    """Return the seconds of a clock that cannot be set and that continues while the machine sleeps (man clock_gettime)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leases:
    """The leases of one daemon in one remote. Not thread-safe.

    `now`: a clock that cannot be set. `wall`: the time of day, which is only shown to people. Methods raise the errors of `Bucket`.
    """

    def __init__(
        self,
        bucket: Objects,
        seal: Sealing,
        sessions: Sessions,
        daemon_id: str,
        *,
        host_name: str = "",
        life_seconds: float = LIFE_SECONDS,
        slack_seconds: float = SLACK_SECONDS,
        now: Callable[[], float] = awake_and_asleep,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._bucket, self._seal, self._sessions = bucket, seal, sessions
        self.daemon_id, self._host_name, self._life_seconds = daemon_id, host_name, life_seconds
        self._slack_seconds, self._now, self._wall = slack_seconds, now, wall
        self._beaten: _Beaten | None = None
        self._number = 0
        #: The time of `now` until which no other daemon may take a lease that this daemon holds.
        self._good_until: float | None = None
        #: Whether other daemons may have taken leases of this one. Then `keep` must be called for each lease, and this is reset.
        self.in_doubt = False

    @property
    def is_good(self) -> bool:
        """Return whether this machine's clock shows that the last heartbeat is within its lifetime."""
        return self._good_until is not None and self._now() < self._good_until

    @property
    def is_beating(self) -> bool:
        """Return whether this daemon has a heartbeat in the remote."""
        return self._beaten is not None

    @property
    def is_sure(self) -> bool:
        """Return whether no other daemon can have taken a lease of this one, except by a user's take-over just now."""
        return self.is_good and not self.in_doubt

    def beat(self) -> None:
        """Write the heartbeat. The leases become `in_doubt` if it was late, or if another daemon rewrote it as a signal."""
        if self._good_until is not None and not self.is_good:
            self.in_doubt = True
        for _ in range(_ATTEMPTS):
            began = self._now()
            self._number += 1
            beat = Heartbeat(self.daemon_id, self._host_name, self._life_seconds, self._number)
            data = self._seal.seal_record(_name(self.daemon_id), beat)
            if self._beaten is None:
                written = self._bucket.create(_name(self.daemon_id), data)
            else:
                written = self._bucket.swap(_name(self.daemon_id), data, self._beaten.version)
            stored = self._stored(self.daemon_id)
            self._beaten = _Beaten(stored.version, stored.modified) if stored else None
            if written and stored and stored.data == data:
                self._good_until = began + self._life_seconds
                return
            self.in_doubt = self._good_until is not None
        raise StoreUnavailable(
            f"Other daemons keep rewriting this daemon's heartbeat in {self._bucket.name}."
        )

    def claim(self, session_id: str, *, heir_of: str = "", take_over: bool = False) -> Tenure:
        """Get the lease of a remote session, or confirm the one that this daemon holds.

        `heir_of`: a daemon that is known to have ended, and whose kernels this daemon has now. `take_over`: get the lease even if
        another machine runs the session. Raises SessionHeld, RemoteObjectMissing if there is no such session.
        """
        if not self.is_good:
            self.beat()
        ended: set[str] = {heir_of, self.daemon_id}
        taken: list[Lease] = []

        def grant(session: RemoteSession) -> RemoteSession:
            taken.clear()
            lease = session.lease
            if lease is not None and lease.daemon_id == self.daemon_id:
                return session
            if lease is not None and lease.daemon_id not in ended and self.lives(lease):
                if not take_over:
                    raise held(session, lease)
                taken.append(lease)
            own = Lease(self.daemon_id, self._host_name, self._wall())
            return msgspec.structs.replace(session, lease=own, term=session.term + 1, moved_at=0.0)

        for _ in range(_ATTEMPTS):
            session = self._sessions.rewrite(session_id, grant)
            for lease in taken:
                self._give_sign(lease)
            if self.is_good:
                return Tenure(self.daemon_id, session.term, session.highest)
            # The request took longer than the lifetime, so another daemon may have taken the lease meanwhile.
            self.beat()
        raise StoreUnavailable(f"{self._bucket.name} is too slow for a lease.")

    def begin(self, session_id: str, term: int) -> Tenure | None:
        """Create a remote session with this daemon's lease; return None if there is one already."""
        if not self.is_good:
            self.beat()
        own = Lease(self.daemon_id, self._host_name, self._wall())
        is_new = self._sessions.begin(Facts(session_id), term, own).lease == own
        return Tenure(self.daemon_id, term) if is_new and self.is_good else None

    def keep(self, session_id: str, tenure: Tenure) -> None:
        """Rewrite a remote session after a late heartbeat. Raises SessionLost, RemoteObjectMissing if the session does not exist."""

        def keep(session: RemoteSession) -> RemoteSession:
            require(session, tenure)
            own = session.lease or Lease(self.daemon_id, self._host_name, self._wall())
            return msgspec.structs.replace(session, lease=own)

        self._sessions.rewrite(session_id, keep)

    def release(self, session_id: str, tenure: Tenure) -> None:
        """End the lease of a remote session. Do nothing if another daemon took it over, or the session does not exist."""
        try:
            session = self._sessions.get(session_id)
        except RemoteObjectMissing:
            return

        def release(session: RemoteSession) -> RemoteSession:
            lease = session.lease
            if lease is None or (lease.daemon_id, session.term) != (tenure.daemon_id, tenure.term):
                return session
            return msgspec.structs.replace(session, lease=None)

        if release(session) != session:
            self._sessions.rewrite(session_id, release)

    def offer(self, session_id: str) -> bool:
        """Mark a remote session as moved, for the daemon that gets its lease next; return False while this daemon has the lease.

        Do nothing if another daemon has it already. Raises RemoteObjectMissing.
        """

        def mark(session: RemoteSession) -> RemoteSession:
            if session.lease is not None:
                return session
            return msgspec.structs.replace(session, moved_at=self._wall())

        session = self._sessions.get(session_id)
        if session.lease is None:
            session = self._sessions.rewrite(session_id, mark)
        return session.lease is None or session.lease.daemon_id != self.daemon_id

    def end(self) -> None:
        """Remove the heartbeat. This ends all leases of this daemon that were not released."""
        self._bucket.delete([_name(self.daemon_id)])
        self._beaten, self._good_until, self.in_doubt = None, None, False

    def holder(self, session: RemoteSession) -> Lease | None:
        """Return the lease of a remote session if another live daemon holds it. To compare ages, this daemon's heartbeat is written."""
        lease = session.lease
        if lease is None or lease.daemon_id == self.daemon_id:
            return None
        return lease if self.lives(lease) else None

    def lives(self, lease: Lease) -> bool:
        """Return whether the daemon of a lease is alive. Its heartbeat is read after this daemon's own was written."""
        self.beat()
        stored = self._stored(lease.daemon_id)
        if stored is None or self._beaten is None:
            return False
        seconds = self._open(lease.daemon_id, stored).life_seconds + self._slack_seconds
        return self._beaten.modified - stored.modified <= timedelta(seconds=seconds)

    def _give_sign(self, lease: Lease) -> None:
        """Rewrite another daemon's heartbeat as a signal: its next heartbeat fails, and it checks its leases."""
        stored = self._stored(lease.daemon_id)
        if stored is None:
            return
        name = _name(lease.daemon_id)
        heartbeat = self._open(lease.daemon_id, stored)
        # If this swap fails, that daemon has just written a heartbeat. It learns of the take-over when it next lists a snapshot.
        self._bucket.swap(name, self._seal.seal_record(name, heartbeat), stored.version)

    def _stored(self, daemon_id: str) -> Stored | None:
        """Return the object of a daemon's heartbeat; None if it does not exist."""
        try:
            return self._bucket.get(_name(daemon_id), max_bytes=MAX_HEARTBEAT_BYTES)
        except RemoteObjectMissing:
            return None

    def _open(self, daemon_id: str, stored: Stored) -> Heartbeat:
        """Return a daemon's heartbeat from its object. Raises RemoteObjectInvalid."""
        name = _name(daemon_id)
        heartbeat = self._seal.open_record(name, stored.data, Heartbeat)
        if heartbeat.daemon_id != daemon_id:
            raise invalid(name, "it is another daemon's")
        return heartbeat


def held(session: RemoteSession, lease: Lease) -> SessionHeld:
    """Return the error for a remote session that another machine runs; it names the machine and the remedy."""
    since = datetime.fromtimestamp(lease.since).astimezone()
    host = lease.host_name or f"of daemon {lease.daemon_id}"
    return SessionHeld(
        f"The session{named(session)} runs on machine {host}, since {since:%Y-%m-%d %H:%M}.",
        hint="Suspend it there and wait until it is uploaded. Or take it over: the kernel on that machine then continues as a branch,"
        " and anything that it has not uploaded is missing here.",
        command="--take-over does that.",
    )


def ahead(session: RemoteSession, remote: str) -> SessionAhead:
    """Return the error for a resume from an older snapshot than the newest one, which another machine has made."""
    newest = session.listed[0].snapshot_id
    return SessionAhead(
        f"Another machine has gone on with the session{named(session)}: remote {remote} has a newer snapshot of it.",
        hint="Fetch the newest one and resume that. If you resume the older one, the newer one stays in the remote.",
        command=f"`jupyter gpuckpt remote fetch {remote} {newest}` fetches the newest one; --take-over resumes the older one.",
    )


def _name(daemon_id: str) -> str:
    return f"{FOLDER}/{daemon_id}"
