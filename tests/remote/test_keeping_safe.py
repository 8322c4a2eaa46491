"""A remote's rule removes nothing by mistake: with wrong clocks, stopped collectors, changes meanwhile, erasures and old rules."""

from __future__ import annotations

from contextlib import closing

import msgspec
import pytest

from jupyter_gpuckpt.client.daemon_traits import GpuCkptDaemon
from jupyter_gpuckpt.errors import FarObjectInvalid, FarObjectMissing
from jupyter_gpuckpt.remote import collector as collecting
from jupyter_gpuckpt.remote import epochs, rules, unneeded
from jupyter_gpuckpt.remote.buckets import Bucket
from jupyter_gpuckpt.remote.collector import ByRule
from jupyter_gpuckpt.remote.erasure import erase
from jupyter_gpuckpt.remote.fetch import fetch
from jupyter_gpuckpt.remote.listed_facts import Told, told
from jupyter_gpuckpt.remote.remote_sessions import Facts, Sessions
from jupyter_gpuckpt.wire import decoding
from jupyter_gpuckpt.wire.manifest_records import Cause
from jupyter_gpuckpt.wire.retention_policy import MAX_BYTES, MAX_COUNT, MAX_SECONDS, RetentionPolicy
from tests.remote.conftest import memory_bucket
from tests.remote.test_collect import assert_sound, at_every_request, stopped
from tests.remote.test_keeping import Keeper, _change, keepers


@pytest.fixture
def keeper(tmp_path):
    yield from keepers(tmp_path)


def _newer_rule(machine):
    """Set a rule that only newer versions know."""
    newer = {"generation": 1, "policy": {"keep_last": 1, "unless": "it rains"}}
    machine.bucket.create(rules.NAME, machine.seal.seal_record(rules.NAME, newer))


def _taken(machine, count, **changes):
    for number in range(count):
        machine.take(f"s{number}", created=float(number), **changes)


def _number(machine):
    return epochs.number(machine.bucket, machine.seal, machine.seen)


def test_an_erasure_applies_no_rule_and_reads_none(keeper):
    a = keeper()
    _taken(a, 3)
    packs = len(a.bucket.list("packs"))
    a.take("other", created=0.0, session="two")
    a.rule(keep_last=1)
    assert erase(a.bucket, a.seal, a.seen, "two").removed
    assert a.listed() == ["s0", "s1", "s2"]
    assert len(a.bucket.list("packs")) == packs


def test_an_erasure_is_complete_although_only_newer_versions_know_the_rule(keeper):
    a = keeper()
    a.take("t0", created=0.0, session="two")
    _newer_rule(a)
    assert erase(a.bucket, a.seal, a.seen, "two").left == 0
    assert (a.bucket.list("manifests"), a.bucket.list("packs")) == ([], [])


@pytest.mark.parametrize("change", ["a removal", "the end of a tombstone", "what is told"])
def test_a_session_that_is_erased_meanwhile_is_not_created_anew(keeper, monkeypatch, change):
    a = keeper()
    _taken(a, 3)
    a.rule(keep_last=1)
    wanted = unneeded.plan(a.bucket, a.seal, a.seen, dict)
    gone = {"one": {a.entry("s0").manifest}}
    if change == "the end of a tombstone":
        a.sessions.mark_deleted("one", "s0", 5.0)
    read, reads = Sessions._read, []

    def read_and_erase(self, name):
        found = read(self, name)
        reads.append(name)
        a.bucket.delete([name])  # somebody erases everything in the remote at this moment
        return found

    monkeypatch.setattr(Sessions, "_read", read_and_erase)
    if change == "a removal":
        removals = unneeded.remove(wanted, a.sessions, lambda: wanted.rule, lambda: True, 9.0)
        assert list(removals) == []
    elif change == "the end of a tombstone":
        collecting._forget_deleted(a.bucket, a.seal, a.seen, gone)
    else:
        with pytest.raises(FarObjectMissing):
            a.tell("s1", None, Told(pinned=True))
    assert reads == ["sessions/one"]
    assert a.bucket.list("sessions") == []


def test_what_an_older_version_uploaded_stays_whatever_other_machines_tell(keeper):
    a = keeper()
    _taken(a, 2)
    _change(a, "s0", about=None)
    for before in (None, Told()):
        a.tell("s0", before, told(a.store.manifest("s0").info), machine="b")
        assert a.judged(keep_last=1)["s0"] == (False, unneeded.UNKNOWN)
    # It still says who relies on it.
    a.tell("s0", None, Told(relied_on_in="one"), machine="b")
    assert a.entry("s0").relied_on_by == {"b": "host of b"}
    assert a.entry("s0").about is None


def test_the_last_listed_stays_even_if_the_clock_of_another_machine_was_ahead(keeper):
    a, b = keeper("a"), keeper("b")
    a.take("older-on-a", created=10_000.0)
    a.take("old-on-a", created=18_000.0)
    b.take("new-on-b", created=600.0, reason="suspend", cause=Cause.SHUTDOWN)
    assert a.judged(keep_last=1)["new-on-b"] == (False, unneeded.LISTED_LAST)
    a.rule(keep_last=1)
    assert a.collects().dropped == 1
    assert a.listed() == ["new-on-b", "old-on-a"]
    # The order in which they were listed counts also if another one was listed after the verdict.
    stale = unneeded.plan(a.bucket, a.seal, a.seen, dict)
    assert stale.going == {}
    session = a.sessions.get("one")
    both = {one.manifest for one in session.listed}
    assert unneeded._mark(a.sessions, session, both, 9.0, lambda: True) == {}


def test_the_newest_of_each_kernel_of_a_session_stays(keeper):
    a = keeper()
    a.take("s0", created=0.0)
    a.take("s1", created=1.0, reason="suspend", cause=Cause.SHUTDOWN)
    a.take("s2", created=2.0)
    a.take("s3", created=3.0)
    # Another kernel goes on in the same far session.
    for name in ("s2", "s3"):
        _change(a, name, kernel_id="two")
    for policy in ({"keep_last": 1}, {"max_bytes": 1}):
        verdicts = a.judged(**policy)
        assert [name for name, one in verdicts.items() if one[0]] == ["s2", "s0"]
        assert verdicts["s1"] == (False, unneeded.NEWEST_OF_KERNEL)
    a.rule(keep_last=1)
    assert a.collects().dropped == 2
    assert a.listed() == ["s1", "s3"]


def test_what_the_rule_counts_must_be_there_still(keeper, monkeypatch):
    a, b = keeper("a"), keeper("b")
    _taken(a, 5)
    judge = unneeded.judge

    def judge_then_delete(*arguments):
        found = judge(*arguments)
        for name in ("s2", "s3"):
            b.sessions.mark_deleted("one", name, 9.0)
        return found

    a.rule(keep_last=3)
    monkeypatch.setattr(unneeded, "judge", judge_then_delete)
    assert a.collects().dropped == 0
    monkeypatch.undo()
    assert a.collects().dropped == 0
    assert a.listed() == ["s0", "s1", "s4"]


def _at_swap(monkeypatch, name, action):
    """Do something once, directly before an object is replaced."""
    swap, done = Bucket.swap, []

    def swap_late(self, one, data, old):
        if one == name and not done:
            done.append(one)
            action()
        return swap(self, one, data, old)

    monkeypatch.setattr(Bucket, "swap", swap_late)
    return done


def check_that_nothing_goes(a, b, monkeypatch, action):
    """Check that `a` removes nothing by its rule if `action` happens directly before its swap, and that `b` can fetch everything."""
    done = _at_swap(monkeypatch, "sessions/one", action)
    by_rule = ByRule()
    assert a.collects(by_rule).dropped == 0
    assert done
    assert by_rule.dropped == {}
    for _ in range(3):
        a.collects()
    assert a.listed() == ["s0", "s1", "s2"]
    for name in ("s0", "s1", "s2"):
        b.fetch(name, "one")


def test_a_rule_that_is_removed_directly_before_the_swap_takes_nothing_away(keeper, monkeypatch):
    a, b = keeper("a"), keeper("b")
    _taken(a, 3)
    a.rule(keep_last=1)
    check_that_nothing_goes(a, b, monkeypatch, b.rule)


def test_a_collector_that_stopped_for_an_epoch_removes_nothing_by_the_rule(keeper, monkeypatch):
    a, b = keeper("a"), keeper("b")
    _taken(a, 3)
    a.rule(keep_last=1)
    advance, stopped = epochs.advance, []

    def advance_and_stop(*arguments):
        done = advance(*arguments)
        monkeypatch.undo()
        stopped.append(done)
        # An erasure begins epochs, too, and does not apply the rule.
        collecting.collect(b.bucket, b.seal, b.seen)
        return done

    monkeypatch.setattr(epochs, "advance", advance_and_stop)
    assert a.collects().dropped == 0
    assert stopped == [True]
    assert a.listed() == ["s0", "s1", "s2"]


def test_what_a_later_collector_may_remove_already_is_not_brought_back(keeper, monkeypatch):
    a, b = keeper("a"), keeper("b")
    _taken(a, 3)
    a.rule(keep_last=1)
    [(session_id, (judged, names))] = unneeded.plan(a.bucket, a.seal, a.seen, dict).going.items()
    marked = unneeded._mark(a.sessions, judged, names, 9.0, lambda: True)
    assert len(marked) == 2
    for answers in ([False], [True, False]):
        is_ours = iter(answers).__next__
        took = unneeded._took_back(a.sessions, session_id, marked, is_ours, 9.0)
        assert (took, a.listed()) == (False, ["s2"])
    assert unneeded._took_back(b.sessions, session_id, marked, lambda: True, 9.0)
    assert a.listed() == ["s0", "s1", "s2"]


@pytest.mark.parametrize("epochs_meanwhile", [0, 1, 2])
def test_a_swap_that_arrives_after_the_end_of_its_rule_takes_nothing_away(
    keeper, monkeypatch, epochs_meanwhile
):
    """A collector is stopped while its request is on the way, and other collectors begin epochs meanwhile."""
    a, b = keeper("a"), keeper("b")
    _taken(a, 3)
    a.rule(keep_last=1)

    def end():
        b.rule()
        unneeded.end_rule(b.sessions)
        for _ in range(epochs_meanwhile):
            b.collects()

    check_that_nothing_goes(a, b, monkeypatch, end)


def test_a_session_that_is_read_after_the_end_of_the_rule_is_left_as_it_is(keeper, monkeypatch):
    """A collector is stopped before it reads a far session, when the rule has just been asked for."""
    a, b = keeper("a"), keeper("b")
    _taken(a, 3)
    a.rule(keep_last=1)
    rule_now, get, asked, done = rules.read, Bucket.get, [], []

    def read_rule(*arguments):
        asked.append(found := rule_now(*arguments))
        return found

    def get_late(self, name, **limits):
        # The plan has read the rule once; the second time it was about to mark.
        if name == "sessions/one" and len(asked) == 2 and not done:
            done.append(name)
            b.rule()
            unneeded.end_rule(b.sessions)
            for _ in range(2):
                b.collects()
        return get(self, name, **limits)

    monkeypatch.setattr(rules, "read", read_rule)
    monkeypatch.setattr(Bucket, "get", get_late)
    assert a.collects(ByRule()).dropped == 0
    assert done
    monkeypatch.undo()
    for _ in range(3):
        a.collects()
    assert a.listed() == ["s0", "s1", "s2"]
    for name in ("s0", "s1", "s2"):
        b.fetch(name, "one")


@pytest.mark.slow
@pytest.mark.parametrize("epochs_meanwhile", [0, 2])
def test_a_collector_that_stops_anywhere_leaves_what_is_listed_whole(tmp_path, epochs_meanwhile):
    """Stop a collector at each of its requests until the rule is removed, with and without other collectors."""

    def collects(at):
        there = memory_bucket()
        a, other = Keeper(there, tmp_path / f"a{at}"), Keeper(there, tmp_path / f"b{at}")
        with closing(a), closing(other):
            _taken(other, 2)
            other.take("t", created=0.0, session="two")
            other.rule(keep_last=1)
            left = []

            def meanwhile():
                other.rule()
                for _ in range(epochs_meanwhile):
                    other.collects()
                left.extend(other.listed())

            bucket = stopped(a, at, meanwhile)
            a.collects()
            if bucket.asked < at:
                return False
            if not epochs_meanwhile:
                assert {*left} <= {*other.listed()}, at
            for _ in range(3):
                assert assert_sound(other) >= 2, at
                other.collects()
            assert {"s1", "t"} <= {*other.listed()}
        return True

    assert at_every_request(collects) > 20


def test_a_rule_that_cannot_be_read_uses_up_no_epoch(keeper):
    a = keeper()
    _taken(a, 1)
    a.collects()
    before = _number(a)
    _newer_rule(a)
    for _ in range(2):
        with pytest.raises(FarObjectInvalid):
            a.collects()
    assert _number(a) == before


def test_a_fetch_that_has_begun_ends_although_the_rule_removes_its_snapshot(keeper):
    a, b = keeper("a"), keeper("b")
    _taken(a, 2)
    packs = len(a.bucket.list("packs"))
    a.take("newest", created=2.0)
    packs = len(a.bucket.list("packs")) - packs
    [old] = [one for one in b.sessions.get("one").listed if one.snapshot_id == "s0"]
    a.rule(keep_last=1)
    by_rule = ByRule()
    assert a.collects(by_rule).dropped == 2
    assert (by_rule.generation, by_rule.dropped.keys()) == (1, {"one"})
    assert sorted(by_rule.dropped["one"]) == ["s0", "s1"]
    fetch(b.bucket, b.seal, old, b.store)
    b.store.verify("s0")
    # The next epoch removes the manifests and the packs.
    a.collects()
    assert (len(a.bucket.list("manifests")), len(a.bucket.list("packs"))) == (1, packs)
    assert len(a.sessions.get("one").snapshots) == 1
    c = keeper("c")
    with pytest.raises(FarObjectMissing) as raised:
        fetch(c.bucket, c.seal, old, c.store)
    assert "rule" in raised.value.hint


def test_an_upload_over_a_removed_snapshot_leaves_no_manifest_of_it(keeper):
    a = keeper()
    _taken(a, 3)
    a.rule(keep_last=1)
    assert a.collects().dropped == 2
    a.rule()
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
