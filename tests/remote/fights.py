"""Two machines that fight for one remote session, by networks that fail, lose answers or hold them up, with clocks minutes apart.

python -m tests.remote.fights N [SEED]      until N leases were granted; then what both believed and what lies in the remote is compared
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from jupyter_gpuckpt.remote import remote_sessions
from jupyter_gpuckpt.remote.buckets import open_bucket
from jupyter_gpuckpt.remote.remote_sessions import Facts, RemoteSession, RemoteSnapshot
from jupyter_gpuckpt.remote.sealing import Seal
from jupyter_gpuckpt.wire.remote_records import Capabilities
from tests.remote import servers
from tests.remote.fighting import LIFE, SESSION
from tests.remote.interfering import Asked, Refusal, before
from tests.remote.stores import Machine

ROOT = Path(__file__).parents[2]
_STUCK_SECONDS = 300.0
#: How far the clocks of both are from the truth, in seconds.
_OFF = {"a": 600.0, "b": -900.0}
_DOWN = Refusal(503, "SlowDown")
#: How often a writing that takes the lease is held up on its way there, and its answer on the way back.
_HOLDS_UP, _HOLDS_BACK = 0.6, 0.15
#: How late an idle machine may say something, in seconds.
_LATE = 0.5


class Network:
    """The way of one machine to the remote: open, closed, or one that loses answers, each for a while.

    Often it holds up a writing that takes the lease, until the other machine has written a heartbeat and then read the session: so
    that one comes back between another's look at its heartbeat and the writing that takes its lease. And now and then it holds back
    the answer to such a writing for longer than a lease lives.
    """

    def __init__(self, chance: random.Random, terms: Terms) -> None:
        self._chance, self._lock = chance, threading.Lock()
        self._terms = terms
        #: The answer to these writings is held back.
        self._slow: set[bytes] = set()
        self._state, self._until = "open", 0.0
        self.counts: Counter[str] = Counter()
        #: Set when the session was read this way after a heartbeat was written.
        self.comes_back = threading.Event()
        self._has_beaten = False
        self.other = self

    def refuse(self, asked: Asked) -> Refusal | None:
        if self._now() == "closed":
            return _DOWN
        if not self._terms.is_grant(asked):
            return None
        if self._happens("held back", _HOLDS_BACK):
            self._slow.add(asked.body)
        if self._happens("held up", _HOLDS_UP):
            self.other.comes_back.clear()
            if self.other.comes_back.wait(LIFE * 0.8):
                self.counts["came back"] += 1
        return None

    def lose(self, asked: Asked) -> Refusal | None:
        if asked.method == "PUT" and "/heartbeats/" in asked.path:
            self._has_beaten = True
        elif asked.method == "GET" and remote_sessions.name_of(SESSION) in asked.path:
            if self._has_beaten:
                self.comes_back.set()
            self._has_beaten = False
        if asked.body in self._slow:
            time.sleep(LIFE * 1.5)
        with self._lock:
            loses = self._state == "loses" and self._chance.random() < 0.5
        return _DOWN if loses else None

    def _happens(self, what: str, probability: float) -> bool:
        with self._lock:
            happens = self._chance.random() < probability
            self.counts[what] += happens
        return happens

    def _now(self) -> str:
        with self._lock:
            if time.monotonic() >= self._until:
                self._state = self._chance.choices(["open", "loses", "closed"], [5, 2, 2])[0]
                self._until = time.monotonic() + self._chance.random() * 1.8 * LIFE
                self.counts[self._state] += 1
            return self._state


class Terms:
    """Who got which lease of the session, read from the writings that the remote has taken; those who wrote may not know."""

    def __init__(self, seal: Seal) -> None:
        self._seal, self._lock = seal, threading.Lock()
        #: By term: who has it, and when the remote had written so.
        self.daemons: dict[int, str] = {}
        self.times: dict[int, float] = {}
        self.doubles: list[str] = []

    def note(self, asked: Asked, status: int) -> None:
        """Remember the lease that a writing of the session says; `doubles` are two daemons with one term."""
        written = self._written(asked)
        if written is None or written.lease is None or status >= 300:
            return
        with self._lock:
            self.times.setdefault(written.term, time.monotonic())
            daemon_id = self.daemons.setdefault(written.term, written.lease.daemon_id)
            if daemon_id != written.lease.daemon_id:
                self.doubles.append(f"{written.term}: {daemon_id} and {written.lease.daemon_id}")

    def is_grant(self, asked: Asked) -> bool:
        """Return whether a request writes a lease that nobody has had."""
        written = self._written(asked)
        if written is None or written.lease is None:
            return False
        with self._lock:
            return written.term not in self.daemons

    def _written(self, asked: Asked) -> RemoteSession | None:
        name = remote_sessions.name_of(SESSION)
        if asked.method != "PUT" or not asked.path.partition("?")[0].endswith(name):
            return None
        return self._seal.open_record(name, asked.body, RemoteSession)


class Outcome(NamedTuple):
    """What a fight was like."""

    granted: int
    lost: int
    branches: int
    counts: Counter[str]


def fight(url: str, folder: Path, times: int, seed: int, mutation: str = "") -> Outcome:
    """Have two machines fight until so many leases were granted, and check what they believed and wrote.

    `mutation`: what is wrong with the protocol (`fighting.MUTATIONS`), for the test that this is found.
    """
    chance = random.Random(seed)
    there = servers.s3_remote(url, f"fight-{seed}-{os.getpid()}-{time.monotonic_ns()}")
    there = msgspec.structs.replace(there, capabilities=Capabilities(*[True] * 6))
    first = Machine(open_bucket(there), folder / "first")
    first.sessions.add(Facts(SESSION), _snapshot())
    said: list[dict[str, Any]] = []
    terms = Terms(first.seal)
    with ExitStack() as stack:
        fighters, networks = [], []
        for name, off in _OFF.items():
            network = Network(random.Random(f"{seed} {name}"), terms)
            at = stack.enter_context(before(url, network.refuse, network.lose, terms.note))
            settings = there.settings | {"endpoint": at}
            remote = msgspec.structs.replace(there, settings=settings)
            words = [str(folder / name), msgspec.json.encode(remote).decode()]
            words += [name, str(seed), str(off), mutation]
            fighters.append(stack.enter_context(_fighter(words, said)))
            networks.append(network)
        for one, other in (networks, networks[::-1]):
            one.other = other
        pauses: list[_Pause] = []
        end = time.monotonic() + _STUCK_SECONDS + 10 * times
        while sum(one["what"] == "has" for one in list(said)) < times:
            assert time.monotonic() < end, said[-20:]
            assert all(one.poll() is None for one in fighters), said[-20:]
            _pause_one(fighters, chance, pauses)
            time.sleep(0.1)
        for fighter in fighters:
            assert fighter.stdin is not None
            fighter.stdin.close()
        for fighter in fighters:
            assert fighter.wait(120) == 0
    try:
        return _check(first, said, pauses, terms, networks[0].counts + networks[1].counts)
    finally:
        first.close()


class _Pause(NamedTuple):
    """A time in which a machine, by its name, stood still."""

    name: str
    begin: float
    end: float


def _pause_one(
    fighters: list[subprocess.Popen[str]], chance: random.Random, pauses: list[_Pause]
) -> None:
    """Now and then let a machine stand still, often for longer than a lease lives."""
    if chance.random() > 0.04:
        return
    number = chance.randrange(len(fighters))
    began = time.monotonic()
    fighters[number].send_signal(signal.SIGSTOP)
    time.sleep(chance.random() * 4 * LIFE)
    fighters[number].send_signal(signal.SIGCONT)
    pauses.append(_Pause([*_OFF][number], began, time.monotonic()))


@contextmanager
def _fighter(words: list[str], said: list[dict[str, Any]]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.remote.fighting", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | servers.s3_variables(),
    )

    def read() -> None:
        assert process.stdout is not None
        said.extend(map(json.loads, process.stdout))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield process
    finally:
        with process:
            process.kill()
            reader.join()


def _snapshot() -> RemoteSnapshot:
    return RemoteSnapshot("s0", SESSION, f"manifests/s0.{'0' * 16}", b"d" * 32, 1.0)


class _Belief(NamedTuple):
    begin: float
    end: float
    daemon: str
    term: int


def _check(
    machine: Machine,
    said: list[dict[str, Any]],
    pauses: list[_Pause],
    terms: Terms,
    counts: Counter[str],
) -> Outcome:
    said = sorted(said, key=lambda one: one["at"])
    granted = [one for one in said if one["what"] == "has"]
    # Each term is that of one daemon, which is the one that says so.
    assert not terms.doubles, terms.doubles
    for one in granted:
        assert terms.daemons[one["term"]] == one["daemon"], (one, terms.daemons)
    # Whoever was granted it could be sure of it then, unless it stood still before it could say so.
    for one in granted:
        late = one["at"] - one["until"]
        stood = any(
            each.name == one["daemon"].rstrip("0123456789")
            and each.begin < one["at"]
            and each.end > one["until"]
            for each in pauses
        )
        assert late < _LATE or stood, f"{one} had the lease {late:.2f} s after it could be over"
    # Never two at one time, but where somebody wanted it. Who is granted a lease and who had it before need not say so at one time.
    beliefs = sorted([*_beliefs(said), *_leases(terms)])
    for number, belief in enumerate(beliefs):
        for other in beliefs[number + 1 :]:
            if other.begin >= belief.end:
                break
            if belief.daemon != other.daemon and not _is_wanted(belief, other, said, terms):
                raise AssertionError(f"{belief} and {other} at one time")
    found = [machine.sessions.get(one) for one in machine.sessions.ids()]
    # Whoever has lost it has listed nothing after the next one has.
    [main] = [one for one in found if one.facts.session_id == SESSION]
    listed = [int(one.snapshot_id.split(".")[0]) for one in main.snapshots[1:]]
    assert listed == sorted(listed), listed
    # And nothing is missing.
    everywhere = {each.snapshot_id for one in found for each in one.snapshots}
    missing = {one["snapshot"] for one in said if one["what"] == "saved"} - everywhere
    assert not missing, missing
    lost = sum(one["what"] == "ends" and one["lost"] for one in said)
    return Outcome(len(granted), lost, len(found) - 1, counts)


def _is_wanted(one: _Belief, other: _Belief, said: list[dict[str, Any]], terms: Terms) -> bool:
    """Return whether the lease of the first was taken by somebody who knew that it lives and wanted it all the same."""
    first = min(one, other, key=lambda each: each.term)
    taker = terms.daemons.get(first.term + 1)
    of_taker = [each for each in said if taker and each.get("daemon") == taker]
    takes_over = any(each["what"] == "wants" and each["takes_over"] for each in of_taker)
    finds = [each for each in of_taker if each["what"] == "finds" and each["of"] == first.daemon]
    return takes_over and bool(finds) and finds[-1]["lives"]


def _beliefs(said: list[dict[str, Any]]) -> Iterator[_Belief]:
    """Yield when each daemon believed that it has the session: after each heartbeat until its end, or until it said so."""
    ended = {one["daemon"]: one["at"] for one in said if one["what"] == "ends"}
    for one in said:
        if one["what"] == "believes":
            end = min(one["until"], ended.get(one["daemon"], one["until"]))
            if end > one["at"]:
                yield _Belief(one["at"], end, one["daemon"], one["term"])


def _leases(terms: Terms) -> Iterator[_Belief]:
    """Yield each lease from its grant to the next one, or for the life of a heartbeat: until then nobody else may believe."""
    for term, begin in terms.times.items():
        end = min(begin + LIFE, terms.times.get(term + 1, begin + LIFE))
        yield _Belief(begin, end, terms.daemons[term], term)


def main() -> None:
    times, seed = int(sys.argv[1]), int([*sys.argv, "0"][2])
    os.environ.update(servers.s3_variables())
    with tempfile.TemporaryDirectory(prefix="fights-") as folder:
        (Path(folder) / "weed").mkdir()
        with servers.seaweedfs(Path(folder) / "weed") as url:
            print(fight(url, Path(folder), times, seed or random.randrange(1 << 30)))


if __name__ == "__main__":
    main()
