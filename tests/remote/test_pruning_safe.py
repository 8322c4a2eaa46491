"""A prune of a remote removes nothing by mistake: with wrong clocks, changes meanwhile, erasures and other collectors."""

from __future__ import annotations

from contextlib import closing

import msgspec
import pytest

from jupyter_gpuckpt.client.daemon_traits import GpuCkptDaemon
from jupyter_gpuckpt.errors import RemoteObjectMissing
from jupyter_gpuckpt.remote import collector as collecting
from jupyter_gpuckpt.remote import unneeded
from jupyter_gpuckpt.remote.capabilities import time_there
from jupyter_gpuckpt.remote.collector import collect
from jupyter_gpuckpt.remote.fetch import fetch
from jupyter_gpuckpt.remote.listed_facts import Told
from jupyter_gpuckpt.remote.remote_sessions import Facts, Sessions
from jupyter_gpuckpt.wire import decoding
from jupyter_gpuckpt.wire.manifest_records import Cause
from jupyter_gpuckpt.wire.retention_policy import MAX_BYTES, MAX_COUNT, MAX_SECONDS, RetentionPolicy
from tests.remote.conftest import memory_bucket
from tests.remote.stores import mark_deleted
from tests.remote.test_collect import assert_sound, at_every_request, stopped
from tests.remote.test_pruning import Keeper, _change, keepers


@pytest.fixture
def keeper(tmp_path):
    yield from keepers(tmp_path)


def _taken(machine, count, **changes):
    for number in range(count):
        machine.take(f"s{number}", created=float(number), **changes)


@pytest.mark.parametrize("change", ["a removal", "the end of a tombstone", "what is told"])
def test_a_session_that_is_erased_meanwhile_is_not_created_anew(keeper, monkeypatch, change):
    a = keeper()
    _taken(a, 3)
    verdicts = a.verdicts(keep_last=1)
    gone = {a.entry("s0").manifest}
    if change == "the end of a tombstone":
        mark_deleted(a.sessions, "one", "s0", 5.0)
    read, reads = Sessions._read, []

    def read_and_erase(self, name):
        found = read(self, name)
        reads.append(name)
        a.bucket.delete([name])  # somebody erases everything in the remote at this moment
        return found

    monkeypatch.setattr(Sessions, "_read", read_and_erase)
    if change == "a removal":
        assert unneeded.remove(a.sessions, verdicts, 9.0) == set()
    elif change == "the end of a tombstone":
        collecting.Collector(a.bucket, a.seal, a.seen)._forget_deleted("one", gone)
    else:
        with pytest.raises(RemoteObjectMissing):
            a.tell("s1", None, Told(pinned=True))
    assert reads == ["sessions/one"]
    assert a.bucket.list("sessions") == []


def test_the_last_listed_stays_even_if_the_clock_of_another_machine_was_ahead(keeper):
    a, b = keeper("a"), keeper("b")
    a.take("older-on-a", created=10_000.0)
    a.take("old-on-a", created=18_000.0)
    b.take("new-on-b", created=600.0, reason="suspend", cause=Cause.SHUTDOWN)
    assert a.judged(keep_last=1)["new-on-b"] == (False, unneeded.LISTED_LAST)
    assert a.prunes(keep_last=1) == 1
    assert a.listed() == ["new-on-b", "old-on-a"]
    # The order in which they were listed counts also if another one was listed after the verdict.
    session = a.sessions.get("one")
    both = {one.manifest for one in session.listed}
    assert unneeded._mark(a.sessions, session, both, 9.0) == set()


def test_the_newest_of_each_kernel_of_a_session_stays(keeper):
    a = keeper()
    a.take("s0", created=0.0)
    a.take("s1", created=1.0, reason="suspend", cause=Cause.SHUTDOWN)
    a.take("s2", created=2.0)
    a.take("s3", created=3.0)
    # Another kernel goes on in the same remote session.
    for name in ("s2", "s3"):
        _change(a, name, kernel_id="two")
    for policy in ({"keep_last": 1}, {"max_bytes": 1}):
        verdicts = a.judged(**policy)
        assert [name for name, one in verdicts.items() if one[0]] == ["s2", "s0"]
        assert verdicts["s1"] == (False, unneeded.NEWEST_OF_KERNEL)
    assert a.prunes(keep_last=1) == 2
    assert a.listed() == ["s1", "s3"]


def test_what_the_rules_count_must_be_there_still(keeper):
    a, b = keeper("a"), keeper("b")
    _taken(a, 5)
    verdicts = a.verdicts(keep_last=3)
    for name in ("s2", "s3"):
        mark_deleted(b.sessions, "one", name, 9.0)
    assert unneeded.remove(a.sessions, verdicts, 9.0) == set()
    assert a.prunes(keep_last=3) == 0
    assert a.listed() == ["s0", "s1", "s4"]


@pytest.mark.slow
def test_a_prune_that_stops_anywhere_leaves_what_is_listed_whole(tmp_path):
    """Stop a prune at each of its requests, until others have pruned, uploaded and collected."""

    def prunes(at):
        there = memory_bucket()
        a, other = Keeper(there, tmp_path / f"a{at}"), Keeper(there, tmp_path / f"b{at}")
        with closing(a), closing(other):
            _taken(other, 2)
            other.take("t", created=0.0, session="two")

            def meanwhile():
                other.prunes(keep_last=1)
                other.take("s2", created=2.0)
                for _ in range(2):
                    other.collects()

            bucket = stopped(a, at, meanwhile)
            a.collects()
            a.prunes(keep_last=1)
            if bucket.asked < at:
                return False
            for _ in range(3):
                assert assert_sound(other) >= 2, at
                other.collects()
            assert {"s2", "t"} <= {*other.listed()}
        return True

    assert at_every_request(prunes) > 20


def test_a_fetch_that_has_begun_ends_although_a_prune_removes_its_snapshot(keeper):
    a, b = keeper("a"), keeper("b")
    _taken(a, 2)
    packs = len(a.bucket.list("packs"))
    a.take("newest", created=2.0)
    packs = len(a.bucket.list("packs")) - packs
    [old] = [one for one in b.sessions.get("one").listed if one.snapshot_id == "s0"]
    assert a.prunes(time_there(a.bucket), keep_last=1) == 2
    # Within a day no collection removes anything.
    for _ in range(3):
        collect(a.bucket, a.seal, a.seen)
    fetch(b.bucket, b.seal, old, b.store)
    b.store.verify("s0")
    # After it they remove the manifests and the packs.
    for _ in range(2):
        a.collects()
    assert (len(a.bucket.list("manifests")), len(a.bucket.list("packs"))) == (1, packs)
    assert len(a.sessions.get("one").snapshots) == 1
    c = keeper("c")
    with pytest.raises(RemoteObjectMissing) as raised:
        fetch(c.bucket, c.seal, old, c.store)
    assert "remote prune" in raised.value.hint


def test_an_upload_over_a_removed_snapshot_leaves_no_manifest_of_it(keeper):
    a = keeper()
    _taken(a, 3)
    assert a.prunes(keep_last=1) == 2
    # The manifest of s0 is still there.
    assert a.uploader().upload(a.store, "s0", Facts("one")).is_new
    for _ in range(3):
        a.collects()
    assert a.listed() == ["s0", "s2"]
    assert len(a.bucket.list("manifests")) == 2
    assert not any(one.deleted_at for one in a.sessions.get("one").snapshots)
    b = keeper("b")
    b.fetch("s0", "one")
    b.store.verify("s0")


@pytest.mark.parametrize(
    "field", ["keep_last", "keep_suspends", "keep_within_seconds", "max_bytes"]
)
def test_a_policy_has_bounds_and_a_setting_beyond_them_is_the_largest(field):
    bound = {"keep_within_seconds": MAX_SECONDS, "max_bytes": MAX_BYTES}.get(field, MAX_COUNT)
    most = msgspec.json.encode({field: bound})
    assert getattr(decoding.from_json(most, RetentionPolicy), field) == bound
    for beyond in (bound * 10, -1):
        with pytest.raises(msgspec.ValidationError):
            decoding.from_json(msgspec.json.encode({field: beyond}), RetentionPolicy)
    name = field.removesuffix("_seconds")
    stated = GpuCkptDaemon(**{name: bound * 10}).retention()
    assert getattr(stated, field) == bound
