"""The collector removes what nothing needs, and nothing that a listed snapshot needs, whoever stops for however long."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import pytest

from jupyter_gpuckpt.errors import GpuCkptError, RemoteObjectInvalid
from jupyter_gpuckpt.remote import collector as collecting
from jupyter_gpuckpt.remote import epochs, remote_manifests
from jupyter_gpuckpt.remote.buckets import Bucket
from jupyter_gpuckpt.remote.collector import Collected, collect
from jupyter_gpuckpt.remote.lease_objects import Leases
from tests.remote.conftest import memory_bucket, quick
from tests.remote.stores import Machine, chunks, mark_deleted

NOW = timedelta(0)
FIRST, SECOND = chunks(1, 12), chunks(2, 12)


@pytest.fixture
def machine(tmp_path):
    """Return machines with one remote in memory."""
    made = []
    there = memory_bucket()

    def make(name="a", bucket=None):
        made.append(Machine(bucket or there, tmp_path / name))
        return made[-1]

    yield make
    for one in made:
        one.close()


def collected(machine, min_age=NOW):
    return collect(machine.bucket, machine.seal, machine.seen, min_age=min_age)


def assert_sound(machine):
    """Everything that listed snapshots need is there."""
    packs = {one.name: one.size for one in machine.bucket.list("packs")}
    count = 0
    for session_id in machine.sessions.ids():
        for one in machine.sessions.get(session_id).listed:
            at_remote = remote_manifests.read(
                machine.bucket, machine.seal, one.manifest, one.digest
            )
            lost = [ref.name for ref in at_remote.packs if packs.get(ref.name) != ref.length]
            assert not lost, f"{one.snapshot_id} lacks {lost}"
            count += 1
    return count


def test_what_nothing_needs_goes_in_the_epoch_after_it_was_condemned(bucket, tmp_path):
    a = Machine(bucket, tmp_path / "a")
    a.save("s1", *FIRST)
    a.save("s2", *FIRST[:2], *SECOND)
    a.upload("s1")
    a.upload("s2")
    assert collected(a) == Collected()
    there = len(bucket.list("packs"))
    mark_deleted(a.sessions, "session-1", "s1", 1.0)
    assert [one.snapshot_id for one in a.sessions.get("session-1").listed] == ["s2"]
    done = collected(a)
    assert (done.removed, done.condemned > 0) == (0, True)
    assert len(bucket.list("packs")) == there
    assert len(a.sessions.get("session-1").snapshots) == 1
    again = collected(a)
    assert again.removed == done.condemned
    assert again.freed_bytes > 50_000
    assert len(bucket.list("packs")) == there - again.removed
    assert collected(a) == Collected()
    assert len(bucket.list("condemned")) <= 2
    b = Machine(bucket, tmp_path / "b")
    b.fetch("s2")
    b.store.verify("s2")
    # The index names nothing that is gone.
    b.save("s3", *FIRST)
    b.upload("s3")
    assert assert_sound(b) == 2
    a.close()
    b.close()


def test_heartbeats_of_daemons_that_ended_without_a_word_go_after_a_day(machine, monkeypatch):
    a = machine()
    a.save("s1", *FIRST[:1])
    a.upload("s1")
    Leases(a.bucket, a.seal, a.sessions, "ended").claim("session-1")
    collected(a)
    assert [one.name for one in a.bucket.list("heartbeats")] == ["heartbeats/ended"]
    monkeypatch.setattr(collecting, "MIN_AGE", timedelta(seconds=-1))
    collected(a)
    assert a.bucket.list("heartbeats") == []


def test_young_packs_are_spared(machine):
    a = machine()
    a.save("s1", *FIRST)
    a.upload("s1")
    mark_deleted(a.sessions, "session-1", "s1", 1.0)
    assert collected(a, timedelta(minutes=1)) == Collected()
    assert collected(a).condemned > 0


def test_nothing_goes_while_a_manifest_cannot_be_read(machine):
    a = machine()
    a.save("s1", *FIRST)
    a.save("s2", *SECOND)
    a.upload("s1")
    a.upload("s2")
    mark_deleted(a.sessions, "session-1", "s1", 1.0)
    collected(a)
    name = a.sessions.get("session-1").listed[0].manifest
    data = a.bucket.get(name).data
    a.bucket.overwrite(name, data[:-1])
    there = len(a.bucket.list("packs"))
    for _ in range(3):
        with pytest.raises(RemoteObjectInvalid):
            collected(a)
    assert len(a.bucket.list("packs")) == there
    a.bucket.overwrite(name, data)
    for _ in range(3):
        collected(a)
    assert len(a.bucket.list("packs")) < there
    assert assert_sound(a) == 1


def test_a_pack_that_a_late_manifest_needs_stays_and_is_not_shared_again(machine):
    a = machine()
    a.save("s1", *FIRST)
    a.upload("s1")
    packs = {one.name for one in a.bucket.list("packs")}
    now = epochs.read(a.bucket, a.seal, a.seen)
    epochs.advance(a.bucket, a.seal, now, epochs.Epoch(1))
    epochs.write_list(a.bucket, a.seal, 1, packs)
    for _ in range(4):
        assert collected(a).removed == 0
    a.save("s2", *FIRST)
    assert a.upload("s2").sent.packs == len(packs)
    mark_deleted(a.sessions, "session-1", "s1", 1.0)
    collected(a)
    assert {one.name for one in a.bucket.list("packs")}.isdisjoint(packs)
    assert assert_sound(a) == 1


class Stopping(Bucket):
    """A bucket that does something else before its n-th request, as if its user had been stopped meanwhile."""

    def __init__(self, below, at, meanwhile):
        super().__init__(below._store, "stopping", retries=quick())
        self.at, self.meanwhile, self.asked = at, meanwhile, 0

    def _once(self, work, name):
        self.asked += 1
        if self.asked == self.at:
            self.meanwhile()
        return super()._once(work, name)


def stopped(machine, at, meanwhile):
    """Return what the machine uses the remote with from now on."""
    machine.bucket = Stopping(machine.bucket, at, meanwhile)
    return machine.bucket


@pytest.mark.slow
def test_an_uploader_that_stands_still_over_three_epochs_lists_only_what_is_there(tmp_path):
    def upload(at):
        there = memory_bucket()
        a, other = Machine(there, tmp_path / f"a{at}"), Machine(there, tmp_path / f"b{at}")
        with closing(a), closing(other):
            a.save("s1", *FIRST)
            a.upload("s1")
            # Nothing but the upload that begins needs these packs any more.
            mark_deleted(a.sessions, "session-1", "s1", 1.0)
            a.save("s2", *FIRST, *SECOND)
            bucket = stopped(a, at, lambda: [collected(other) for _ in range(3)])
            a.upload("s2")
            assert assert_sound(other) == 1, at
            for _ in range(3):
                collected(other)
            assert assert_sound(other) == 1, at
            other.fetch("s2")
            other.store.verify("s2")
        return bucket.asked >= at

    assert at_every_request(upload) > 10


@pytest.mark.slow
def test_a_collector_that_stands_still_over_three_epochs_removes_nothing_that_is_needed(tmp_path):
    def collects(at):
        there = memory_bucket()
        a, other = Machine(there, tmp_path / f"a{at}"), Machine(there, tmp_path / f"b{at}")
        with closing(a), closing(other):
            a.save("s1", *FIRST)
            other.save("s2", *FIRST, *SECOND)
            a.upload("s1")
            mark_deleted(a.sessions, "session-1", "s1", 1.0)
            collected(other)

            def meanwhile():
                other.upload("s2")
                for _ in range(3):
                    collected(other)

            bucket = stopped(a, at, meanwhile)
            collected(a)
            if bucket.asked < at:
                return False
            assert assert_sound(other) == 1, at
            for _ in range(3):
                collected(other)
            assert assert_sound(other) == 1, at
        return True

    assert at_every_request(collects) > 10


def test_a_pack_that_is_about_to_go_is_not_relied_on_although_it_is_still_there(machine):
    a, other = machine("a"), machine("other", memory_bucket())
    other.bucket = Bucket(a.bucket._store, "memory", retries=quick())
    a.save("s1", *FIRST)
    a.upload("s1")
    mark_deleted(a.sessions, "session-1", "s1", 1.0)
    a.save("s2", *FIRST, *SECOND)
    waits, goes_on = threading.Event(), threading.Event()
    create, delete = a.bucket.create, other.bucket.delete

    def late(name, data):
        if name.startswith("manifests/") and not waits.is_set():
            waits.set()
            assert goes_on.wait(60)
        return create(name, data)

    def after_the_upload(names):
        if names and names[0].startswith("packs/") and not goes_on.is_set():
            goes_on.set()
            uploading.result(60)
        return delete(names)

    a.bucket.create, other.bucket.delete = late, after_the_upload
    with ThreadPoolExecutor(1) as pool:
        uploading = pool.submit(a.upload, "s2")
        assert waits.wait(60)
        assert collected(other).condemned > 0
        # It has looked at all manifests, and stands still before it removes the first pack.
        assert collected(other).removed > 0
    assert assert_sound(other) == 1
    other.fetch("s2")
    other.store.verify("s2")


def at_every_request(attempt):
    """Make an attempt be stopped at its first request, another at its second, and so on; how many requests it makes."""
    at = 1
    while attempt(at):
        at += 1
    return at - 1


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 400))]
)
def test_whatever_happens_in_between_all_that_is_listed_is_there(machine, seed):
    chance = random.Random(seed)
    machines = [machine(name) for name in "ab"]
    assert machines[0].key
    contents = [chunks(number, 3, 4000) for number in range(4)]
    saved = 0

    def some_content():
        return [one for part in chance.sample(contents, 2) for one in part]

    def act(depth=0):
        nonlocal saved
        one = chance.choice(machines)
        before = one.bucket
        if depth < 3 and chance.random() < 0.7:
            stopped(one, chance.randint(1, 40), lambda: act(depth + 1))
        try:
            kind = chance.random()
            if kind < 0.45:
                saved += 1
                snapshot_id = f"s{saved}"
                one.save(snapshot_id, *some_content())
                one.upload(snapshot_id, pack_bytes=8000)
            elif kind < 0.6 and one.sessions.ids():
                listed = one.sessions.get("session-1").listed
                for gone in chance.sample(listed, min(1, len(listed))):
                    mark_deleted(one.sessions, "session-1", gone.snapshot_id, 1.0)
            else:
                collected(one)
        finally:
            one.bucket = before

    for _ in range(12):
        act()
        assert_sound(machines[0])


def test_of_two_collectors_one_begins_the_epoch(machine):
    a, other = machine("a"), machine("other")
    a.save("s1", *FIRST)
    a.upload("s1")
    results = []
    stopped(a, 2, lambda: results.append(collected(other)))
    collected(a)
    assert epochs.read(other.bucket, other.seal, other.seen).epoch.number in {1, 2}
    assert assert_sound(other) == 1
    assert not isinstance(results[0], GpuCkptError)
