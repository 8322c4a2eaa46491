"""Leases of remote sessions: one daemon at a time has one, by nobody's own time of day, and whoever loses it learns it."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest

from jupyter_gpuckpt.errors import RemoteObjectMissing, SessionHeld, SessionLost
from jupyter_gpuckpt.remote import lease_objects
from jupyter_gpuckpt.remote.buckets import Bucket
from jupyter_gpuckpt.remote.lease_objects import Leases
from jupyter_gpuckpt.remote.remote_sessions import Facts, RemoteSnapshot, Tenure
from tests.conftest import wait_for
from tests.remote import fighting, fights, servers
from tests.remote.conftest import memory_bucket
from tests.remote.stores import Machine

FACTS = Facts("session-1", path="work/notes.ipynb")
#: The least that whole seconds can tell apart.
LIFE, SLACK = 1.0, 1.0
HOUR = 3600.0


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self, at=1e6):
        self.at = at

    def __call__(self):
        return self.at


@pytest.fixture
def machine(bucket, tmp_path):
    one = Machine(bucket, tmp_path)
    one.sessions.add(FACTS, snapshot("s1"))
    yield one
    one.close()


def snapshot(snapshot_id, created=1.0):
    manifest = f"manifests/{snapshot_id}.{'0' * 16}"
    return RemoteSnapshot(snapshot_id, "session-1", manifest, b"d" * 32, created)


def daemon(machine, name, **options):
    options = {"life_seconds": LIFE, "slack_seconds": SLACK} | options
    return Leases(
        machine.bucket, machine.seal, machine.sessions, name, host_name=f"host {name}", **options
    )


def names(machine):
    return sorted(one.name for one in machine.bucket.list(lease_objects.FOLDER))


def test_a_session_is_leased_to_one_and_to_the_next_when_it_was_released(machine):
    a, b = daemon(machine, "a", life_seconds=HOUR), daemon(machine, "b", life_seconds=HOUR)
    mine = a.claim("session-1")
    assert mine == Tenure("a", 1)
    assert a.claim("session-1") == mine
    with pytest.raises(
        SessionHeld, match=r"The session of work/notes.ipynb runs on machine host a, since 20"
    ) as e:
        b.claim("session-1")
    assert "--take-over" in e.value.command
    assert machine.sessions.get("session-1").lease.host_name == "host a"
    a.release("session-1", mine)
    a.end()
    assert names(machine) == ["heartbeats/b"]
    theirs = b.claim("session-1")
    assert theirs == Tenure("b", 2)
    # What came too late changes nothing.
    a.release("session-1", mine)
    assert machine.sessions.get("session-1").lease.daemon_id == "b"
    with pytest.raises(SessionLost, match="taken over by machine host b"):
        a.keep("session-1", mine)
    assert b.is_sure


def test_who_has_lost_a_session_lists_nothing_in_it(machine):
    a, b = daemon(machine, "a", life_seconds=HOUR), daemon(machine, "b", life_seconds=HOUR)
    mine = a.claim("session-1")
    machine.sessions.add(FACTS, snapshot("s2"), mine)
    theirs = b.claim("session-1", take_over=True)
    with pytest.raises(SessionLost) as e:
        machine.sessions.add(FACTS, snapshot("s3"), mine)
    assert "branch" in e.value.hint
    machine.sessions.add(FACTS, snapshot("s4"), theirs)
    b.release("session-1", theirs)
    with pytest.raises(SessionLost, match="another machine"):
        machine.sessions.add(FACTS, snapshot("s3"), mine)
    assert {one.snapshot_id for one in machine.sessions.get("session-1").listed} == {
        "s1",
        "s2",
        "s4",
    }


def test_who_is_taken_over_learns_it_at_the_next_heartbeat(machine):
    a, b = daemon(machine, "a", life_seconds=HOUR), daemon(machine, "b", life_seconds=HOUR)
    machine.sessions.add(Facts("session-2"), snapshot("other"))
    mine, other = a.claim("session-1"), a.claim("session-2")
    a.beat()
    assert a.is_sure
    b.claim("session-1", take_over=True)
    a.beat()
    assert a.is_good
    assert not a.is_sure
    with pytest.raises(SessionLost):
        a.keep("session-1", mine)
    a.keep("session-2", other)
    a.in_doubt = False
    a.beat()
    assert a.is_sure


def test_a_lease_ends_with_its_heartbeat_by_the_clock_of_the_remote(machine):
    # The clocks of both stand still, hours apart, and their times of day make no sense.
    a = daemon(machine, "a", now=Clock(1e6), wall=Clock(9e9))
    b = daemon(machine, "b", now=Clock(1.0), wall=Clock(1.0))
    mine = a.claim("session-1")
    with pytest.raises(SessionHeld):
        b.claim("session-1")
    found = []

    def taken():
        with suppress(SessionHeld):
            found.append(b.claim("session-1"))
        return found

    wait_for(taken, 30)
    assert found == [Tenure("b", 2)]
    with pytest.raises(SessionLost):
        a.keep("session-1", mine)


def test_who_was_late_and_was_not_overtaken_goes_on(machine):
    clock = Clock()
    a = daemon(machine, "a", now=clock)
    mine = a.claim("session-1")
    clock.at += LIFE
    assert not a.is_good
    a.beat()
    assert a.is_good
    assert not a.is_sure
    before = machine.sessions.get("session-1").generation
    a.keep("session-1", mine)
    # It was written anew, so that somebody who found it abandoned before cannot take it now.
    assert machine.sessions.get("session-1").generation == before + 1


@pytest.mark.parametrize("bucket", ["memory"], indirect=True)
@pytest.mark.parametrize("returns", [True, False])
def test_who_returns_between_the_question_and_the_answer_stays_or_learns_it(machine, returns):
    clock = Clock()
    a, b = daemon(machine, "a", now=clock), daemon(machine, "b", life_seconds=HOUR)
    mine = a.claim("session-1")
    wait_for(lambda: not b.lives(machine.sessions.get("session-1").lease), 30)
    clock.at += LIFE
    judged = b.lives

    def slow(lease):
        lives = judged(lease)
        assert lives is False or returns
        if returns and not lives:
            a.beat()
            a.keep("session-1", mine)
        return lives

    b.lives = slow
    if returns:
        with pytest.raises(SessionHeld):
            b.claim("session-1")
        assert machine.sessions.get("session-1").lease.daemon_id == "a"
    else:
        assert b.claim("session-1") == Tenure("b", 2)


def test_a_daemon_goes_on_for_the_one_before_it_at_once(machine):
    before, after = daemon(machine, "a", life_seconds=HOUR), daemon(machine, "a2")
    mine = before.claim("session-1")
    with pytest.raises(SessionHeld):
        after.claim("session-1")
    assert after.claim("session-1", heir_of="a") == Tenure("a2", 2)
    with pytest.raises(SessionLost):
        before.keep("session-1", mine)


def test_a_heartbeat_that_was_removed_brings_doubt(machine):
    a = daemon(machine, "a", life_seconds=HOUR)
    a.claim("session-1")
    machine.bucket.delete(["heartbeats/a"])
    a.beat()
    assert a.in_doubt
    assert names(machine) == ["heartbeats/a"]


def test_a_claim_that_takes_longer_than_a_life_is_made_again(tmp_path):
    machine, clock = Machine(memory_bucket(), tmp_path), Clock()
    machine.sessions.add(FACTS, snapshot("s1"))
    a, slow = daemon(machine, "a", now=clock), [True, False]
    swap = machine.bucket.swap

    def late(name, data, old):
        if name.startswith("sessions/") and slow.pop(0):
            clock.at += LIFE
        return swap(name, data, old)

    machine.bucket.swap = late
    assert a.claim("session-1") == Tenure("a", 1)
    assert slow == []
    assert a.is_good
    machine.close()


def test_a_session_without_a_lease_costs_few_requests(machine, monkeypatch):
    a = daemon(machine, "a", life_seconds=HOUR)
    a.claim("session-1")
    machine.sessions.add(Facts("session-2"), snapshot("other"))
    requests = Counter()
    put, once = Bucket._put, Bucket._once

    def count_put(self, *arguments):
        requests["writes"] += 1
        return put(self, *arguments)

    def count_once(self, *arguments):
        requests["all"] += 1
        return once(self, *arguments)

    monkeypatch.setattr(Bucket, "_put", count_put)
    monkeypatch.setattr(Bucket, "_once", count_once)
    a.claim("session-2")
    assert requests["writes"] == 1
    # A folder is compared before it is written.
    assert 2 <= requests["all"] <= 3
    a.beat()
    assert requests["writes"] == 2


def test_a_session_that_is_not_there_is_not_leased(machine):
    with pytest.raises(RemoteObjectMissing):
        daemon(machine, "a").claim("none")


def test_sessions_of_older_versions_are_nobodys(machine):
    old = machine.sessions.get("session-1")
    assert (old.lease, old.term) == (None, 0)
    assert daemon(machine, "a").claim("session-1").term == 1


def test_an_erased_session_keeps_its_term(machine):
    a = daemon(machine, "a", life_seconds=HOUR)
    mine = a.claim("session-1")
    machine.sessions.empty("session-1", set())
    found = machine.sessions.get("session-1")
    assert (found.lease, found.term) == (None, 1)
    assert daemon(machine, "b").claim("session-1").term == 2
    with pytest.raises(SessionLost):
        a.keep("session-1", mine)


@pytest.mark.slow
def test_two_machines_that_fight_never_have_it_both(seaweedfs, tmp_path, monkeypatch):
    for name, value in servers.s3_variables().items():
        monkeypatch.setenv(name, value)
    assert fights.fight(seaweedfs, tmp_path, 4, 5).granted >= 4


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("mutation", [one for one in fighting.MUTATIONS if one])
def test_fights_find_a_protocol_that_is_wrong(seaweedfs, tmp_path, monkeypatch, mutation):
    """The machines have to meet at the wrong moment, so it may take several fights."""
    for name, value in servers.s3_variables().items():
        monkeypatch.setenv(name, value)
    found = ""
    for seed in range(1, 9):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            fights.fight(seaweedfs, folder, 25, seed, mutation)
        except AssertionError as error:
            found = str(error)
            break
    assert "at one time" in found or "after it could be over" in found, found
