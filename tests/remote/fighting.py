"""A machine that wants one remote session again and again, by a network that fails, with clocks of its own; see `fights.py`.

python -m tests.remote.fighting FOLDER REMOTE(as JSON) NAME SEED CLOCKS_OFF MUTATION   says what it believes, until its input ends
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from pathlib import Path

import msgspec

from jupyter_gpuckpt.errors import AccessDenied, SessionHeld, SessionLost, StoreUnavailable
from jupyter_gpuckpt.remote.buckets import open_bucket
from jupyter_gpuckpt.remote.lease_objects import Leases, awake_and_asleep
from jupyter_gpuckpt.remote.remote_sessions import Facts, Lease, RemoteSnapshot, Tenure, require
from jupyter_gpuckpt.remote.retries import Retries
from jupyter_gpuckpt.wire.remote_records import Remote
from tests.remote.stores import Machine

SESSION = "session-1"
LIFE, SLACK = 1.5, 1.0
_PAUSE = 0.05
_UNREACHABLE = (StoreUnavailable, AccessDenied)


def say(what: str, **facts: object) -> None:
    print(json.dumps({"what": what, "at": time.monotonic()} | facts), flush=True)


class Asking(Leases):
    """The leases of a machine that says which daemons it has found to live, before it does anything about it."""

    def lives(self, lease: Lease) -> bool:
        lives = super().lives(lease)
        say("finds", daemon=self.daemon_id, of=lease.daemon_id, lives=lives)
        return lives


class ReadsOnly(Asking):
    """Leases whose daemon, after a late heartbeat, only reads whether it still has a session; the other's swap may follow."""

    def keep(self, session_id: str, tenure: Tenure) -> None:
        require(self._sessions.get(session_id), tenure)


class Trusting(Asking):
    """Leases whose daemon does not ask, after it was granted one, whether its own heartbeat is over meanwhile."""

    _is_claiming = False

    @property
    def is_good(self) -> bool:
        return self._is_claiming or super().is_good

    def claim(self, session_id: str, *, heir_of: str = "", take_over: bool = False) -> Tenure:
        if not self.is_good:
            self.beat()
        self._is_claiming = True
        try:
            return super().claim(session_id, heir_of=heir_of, take_over=take_over)
        finally:
            self._is_claiming = False


#: The protocol, and what may be wrong with it, by name.
MUTATIONS = {"": Asking, "keep only reads": ReadsOnly, "a slow claim counts": Trusting}


class Fighter:
    """A machine. Every time that it stops believing that it has the session it is a daemon with another id."""

    def __init__(
        self, machine: Machine, name: str, chance: random.Random, off: float, leases: type[Asking]
    ) -> None:
        self.leases = leases
        self.machine, self.name, self.chance, self.off = machine, name, chance, off
        self.session_id, self.saved, self.unlisted = SESSION, 0, list[str]()
        self.lives = 0

    def daemon(self) -> Leases:
        self.lives += 1
        return self.leases(
            self.machine.bucket,
            self.machine.seal,
            self.machine.sessions,
            f"{self.name}{self.lives}",
            host_name=self.name,
            life_seconds=LIFE,
            slack_seconds=SLACK,
            now=lambda: awake_and_asleep() + self.off,
            wall=lambda: max(0.0, time.time() + self.off),
        )

    def fight(self) -> None:
        """Want the session once, have it for a while, and give it back, forget it or lose it."""
        leases, takes_over = self.daemon(), self.chance.random() < 0.1
        say("wants", daemon=leases.daemon_id, takes_over=takes_over)
        try:
            tenure = leases.claim(SESSION, take_over=takes_over)
        except SessionHeld:
            time.sleep(self.chance.random() * 0.3)
            return
        except _UNREACHABLE:
            return  # it may have got it without knowing
        until = self._until(leases)
        say("has", daemon=leases.daemon_id, term=tenure.term, until=until)
        self._believe(leases, tenure)
        lost = self._have(leases, tenure)
        say("ends", daemon=leases.daemon_id, term=tenure.term, lost=lost)
        if lost:
            # A new session for what others do not have; the machine itself goes on.
            self._list(f"branch-{leases.daemon_id}", None)
        elif self.chance.random() < 0.7:
            try:
                leases.release(SESSION, tenure)
                leases.end()
            except _UNREACHABLE:
                return

    def _have(self, leases: Leases, tenure: Tenure) -> bool:
        """Save and list until it is enough; return whether the session was lost."""
        enough = time.monotonic() + self.chance.random() ** 3 * 6 * LIFE
        while time.monotonic() < enough or self.unlisted:
            if leases.is_sure and time.monotonic() < enough:
                self._save(tenure)
            try:
                leases.beat()
                if leases.in_doubt:
                    leases.keep(SESSION, tenure)
                    leases.in_doubt = False
                self._believe(leases, tenure)
                self._list(SESSION, tenure)
            except SessionLost:
                return True
            except _UNREACHABLE:
                pass
            time.sleep(_PAUSE)
        return False

    def _believe(self, leases: Leases, tenure: Tenure) -> None:
        until = self._until(leases)
        say("believes", daemon=leases.daemon_id, term=tenure.term, until=until)

    def _until(self, leases: Leases) -> float:
        """Return how long no other daemon may take the lease, by the clock of all that is said."""
        return (leases._good_until or 0.0) - awake_and_asleep() - self.off + time.monotonic()

    def _save(self, tenure: Tenure) -> None:
        self.saved += 1
        snapshot_id = f"{tenure.term}.{self.name}.{self.saved}"
        self.unlisted.append(snapshot_id)
        say("saved", snapshot=snapshot_id)

    def _list(self, session_id: str, tenure: Tenure | None) -> None:
        while self.unlisted:
            one = self.unlisted[0]
            manifest = f"manifests/{one}.{'0' * 16}"
            found = RemoteSnapshot(one, SESSION, manifest, b"d" * 32, 1.0)
            try:
                self.machine.sessions.add(Facts(session_id), found, tenure)
            except _UNREACHABLE:
                if tenure is not None:
                    raise
                time.sleep(_PAUSE)
                continue
            self.unlisted.pop(0)


def main() -> None:
    folder, remote, name, seed, off, mutation = sys.argv[1:]
    there = msgspec.json.decode(remote, type=Remote)
    bucket = open_bucket(there, retries=Retries(attempts=2, first_seconds=0.02))
    fighter = Fighter(
        Machine(bucket, Path(folder)),
        name,
        random.Random(f"{seed} {name}"),
        float(off),
        MUTATIONS[mutation],
    )
    over = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    while not over.is_set():
        try:
            fighter.fight()
        except _UNREACHABLE:
            time.sleep(_PAUSE)
    say("leaves")


if __name__ == "__main__":
    main()
