"""What a remote's rule removes of the snapshots of all machines, and what it never removes."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import msgspec
import pytest

from jupyter_gpuckpt.errors import FarObjectInvalid
from jupyter_gpuckpt.remote import rules, unneeded
from jupyter_gpuckpt.remote.collector import ByRule, Packs, collect
from jupyter_gpuckpt.remote.listed_facts import About, Amendment, Told, about, told
from jupyter_gpuckpt.remote.remote_sessions import Facts
from jupyter_gpuckpt.remote.seen import Seen
from jupyter_gpuckpt.wire.manifest_records import Cause
from jupyter_gpuckpt.wire.retention_policy import RetentionPolicy
from tests.manifests import manifest
from tests.remote.conftest import memory_bucket
from tests.remote.stores import Machine, chunks
from tests.remote.test_collect import assert_sound, at_every_request, stopped
from tests.unit.test_store_local import put

PINNED = Told(pinned=True)
NEWEST_ONLY = RetentionPolicy(keep_last=1)


class Keeper(Machine):
    """A machine with snapshots of several sessions, that sets rules and collects."""

    def take(self, snapshot_id, *content, created, session="one", **changes):
        """Take an automatic snapshot, unless `changes` says otherwise, and upload it."""
        content = content or chunks(hash_of(snapshot_id), 6)
        put(self.store, *content)
        made = manifest(snapshot_id, *content, kernel_id=session, created=created)
        changes = {"cause": Cause.AUTOSAVE} | changes
        info = msgspec.structs.replace(made.info, **changes)
        self.store.publish(msgspec.structs.replace(made, info=info))
        self.uploader().upload(self.store, snapshot_id, Facts(session, path=f"{session}.ipynb"))

    def rule(self, **policy):
        """Set the rule."""
        where = (self.bucket, self.seal, self.seen)
        return rules.replace(*where, RetentionPolicy(**policy), host_name="here", now=5.0)

    def collects(self, by_rule=None):
        """Run the collector with the remote's rule; return the result."""
        by_rule = by_rule or ByRule()
        return collect(self.bucket, self.seal, self.seen, min_age=timedelta(0), by_rule=by_rule)

    def listed(self):
        found = unneeded.all_of(self.sessions)
        return sorted(one.snapshot_id for session in found for one in session.listed)

    def entry(self, snapshot_id, session="one"):
        [one] = [one for one in self.sessions.get(session).listed if one.snapshot_id == snapshot_id]
        return one

    def tell(self, snapshot_id, before, now, session="one", machine="m"):
        """Tell the remote a change as one machine does."""
        info = self.store.manifest(snapshot_id).info
        change = Amendment(snapshot_id, [session], before, now, about(info), now.title)
        return self.sessions.amend(session, {snapshot_id: change}, (machine, f"host of {machine}"))

    def judged(self, **policy):
        found = unneeded.all_of(self.sessions)
        verdicts = unneeded.judge(
            found, RetentionPolicy(**policy), Packs(self.bucket, self.seal).of
        )
        return {one.snapshot.snapshot_id: (one.removed, one.reason) for one in verdicts}


def hash_of(name):
    return sum(map(ord, name))


def keepers(tmp_path):
    """Yield a function that makes machines with one remote in memory."""
    there, made = memory_bucket(), []

    def make(name="a"):
        made.append(Keeper(there, tmp_path / name))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def keeper(tmp_path):
    yield from keepers(tmp_path)


def test_a_rule_removes_from_all_sessions_what_any_machine_uploaded(keeper):
    a, b = keeper("a"), keeper("b")
    for number in range(3):
        a.take(f"a{number}", created=number)
        b.take(f"b{number}", created=number, session="two")
    packs = len(a.bucket.list("packs"))
    # Without a rule nothing goes, and neither with one that keeps all.
    assert (a.collects().dropped, b.collects().dropped) == (0, 0)
    b.rule(keep_last=2)
    assert a.collects().dropped == 2
    assert a.listed() == ["a1", "a2", "b1", "b2"]
    a.rule()
    assert b.collects().dropped == 0
    assert len(b.bucket.list("packs")) < packs
    assert len(b.bucket.list("manifests")) == 4
    # What stays can be fetched.
    with closing(keeper("c")) as c:
        for name, session in (("a1", "one"), ("b2", "two")):
            c.fetch(name, session)
            c.store.verify(name)


def test_works_with_every_bucket(bucket, tmp_path):
    with closing(Keeper(bucket, tmp_path / "a")) as a:
        for number in range(2):
            a.take(f"a{number}", created=number)
        a.rule(keep_last=1)
        assert rules.read(a.bucket, a.seal, a.seen).policy == NEWEST_ONLY
        assert a.collects().dropped == 1
        assert a.listed() == ["a1"]


def test_no_rule_removes_what_a_user_may_want(keeper):
    a = keeper()
    a.take("pinned", created=1.0, pinned=True)
    a.take("titled", created=2.0, title="Before the merge")
    a.take("noted", created=3.0, note="The good one.")
    a.take("by-hand", created=4.0, cause=Cause.MANUAL)
    a.take("only-far", created=5.0)
    a.take("old-version", created=6.0)
    a.take("of-a-newer-version", created=7.0)
    a.take("plain", created=8.0)
    a.take("newest", created=9.0)
    a.take("alone", created=0.5, session="never-came-back")
    a.tell("only-far", None, Told(relied_on_in="one"), machine="laptop")
    _change(a, "old-version", about=None)
    _change(a, "of-a-newer-version", about=About("dream", "save", pinned=False, named=False))
    policies = ({"keep_last": 1}, {"keep_last": 1, "max_bytes": 1}, {"max_bytes": 1})
    for policy in policies:
        verdicts = a.judged(**policy)
        assert [name for name, one in verdicts.items() if one[0]] == ["plain"]
    reasons = {name: why for name, (_, why) in verdicts.items()}
    assert reasons["only-far"] == "machine host of laptop relies on it"
    assert reasons["titled"] == reasons["noted"] == unneeded.NAMED
    assert reasons["newest"] == reasons["alone"] == unneeded.NEWEST
    assert reasons["old-version"] == unneeded.UNKNOWN
    assert reasons["of-a-newer-version"] == unneeded.NEWER
    assert (reasons["pinned"], reasons["by-hand"]) == ("it is pinned", "taken by hand")
    # With `manual_too` the one that is neither pinned nor named goes.
    by_hand = a.judged(keep_last=1, manual_too=True)
    assert [name for name, one in by_hand.items() if one[0]] == ["plain", "by-hand"]
    a.rule(keep_last=1, max_bytes=1, manual_too=True)
    assert a.collects().dropped == 2
    assert a.collects().dropped == 0
    assert len(a.listed()) == 8


def _change(machine, snapshot_id, **fields):
    """Replace fields of a snapshot's entry, as another version may write them."""

    def change(session):
        entries = [
            msgspec.structs.replace(one, **fields) if one.snapshot_id == snapshot_id else one
            for one in session.snapshots
        ]
        return msgspec.structs.replace(session, snapshots=entries)

    machine.sessions.rewrite("one", change)


def test_of_suspends_by_hand_the_last_ones_stay(keeper):
    a = keeper()
    for number in range(4):
        a.take(f"s{number}", created=number, reason="suspend", cause=Cause.MANUAL)
    removed = [name for name, one in a.judged(keep_suspends=2).items() if one[0]]
    assert removed == ["s1", "s0"]


def test_shared_packs_count_once_and_the_limit_is_that_of_the_remote(keeper):
    a = keeper()
    common = chunks(1, 12)
    for number in range(4):
        a.take(f"s{number}", *common, *chunks(10 + number, 6), created=number)
    verdicts = unneeded.judge(
        unneeded.all_of(a.sessions), RetentionPolicy(), Packs(a.bucket, a.seal).of
    )
    total = sum(one.size for one in a.bucket.list("packs"))
    # Each counted on its own would take far more than all together.
    assert sum(one.snapshot.stored_bytes for one in verdicts) == 0
    assert not any(removed for removed, _ in a.judged(max_bytes=total).values())
    verdicts = a.judged(max_bytes=total - 1)
    assert [name for name, one in verdicts.items() if one[0]] == ["s0"]
    a.rule(max_bytes=total - 1)
    a.collects()
    a.rule()
    a.collects()
    assert sum(one.size for one in a.bucket.list("packs")) < total


def test_what_changes_after_the_verdict_is_spared(keeper, monkeypatch):
    a = keeper()
    for number in range(4):
        a.take(f"s{number}", created=number)
    judge = unneeded.judge

    def judge_then_pin(*arguments):
        found = judge(*arguments)
        assert a.tell("s1", Told(), Told(pinned=True)) == {"s1"}
        return found

    monkeypatch.setattr(unneeded, "judge", judge_then_pin)
    a.rule(keep_last=1)
    # The verdict on the others may be another one now, so the next collection judges them again.
    assert a.collects().dropped == 0
    monkeypatch.undo()
    assert a.collects().dropped == 2
    assert a.listed() == ["s1", "s3"]


def test_a_collector_that_slept_does_not_apply_a_rule_that_was_changed(keeper, monkeypatch):
    a, b = keeper("a"), keeper("b")
    for number in range(3):
        a.take(f"s{number}", created=number)
    judge = unneeded.judge

    def judge_slowly(*arguments):
        found = judge(*arguments)
        b.rule(keep_last=3)
        return found

    a.rule(keep_last=1)
    before = a.sessions.get("one")
    monkeypatch.setattr(unneeded, "judge", judge_slowly)
    assert a.collects().dropped == 0
    assert a.sessions.get("one") == before
    assert a.listed() == ["s0", "s1", "s2"]


def test_a_rule_is_one_for_all_machines_and_cannot_be_put_back(keeper, tmp_path):
    a, b = keeper("a"), keeper("b")
    a.take("s0", created=0.0)
    where = (a.bucket, a.seal)
    assert rules.read(*where, a.seen) is None
    a.rule(keep_last=1)
    old = a.bucket.get(rules.NAME).data
    assert b.rule(keep_last=5).generation == 2
    assert rules.read(*where, a.seen).policy.keep_last == 5
    a.bucket.overwrite(rules.NAME, old)
    for machine in (a, b):
        with pytest.raises(FarObjectInvalid, match="older than generation 2"):
            rules.read(*where, machine.seen)
        with pytest.raises(FarObjectInvalid):
            machine.collects()
    # A machine that has not seen the newer one cannot know; a new rule ends it.
    assert rules.read(*where, Seen(tmp_path / "new.json")).policy.keep_last == 1
    assert b.rule(keep_last=7).generation == 3
    assert rules.read(*where, a.seen).policy.keep_last == 7
    a.bucket.overwrite(rules.NAME, old[:-1])
    assert a.rule().generation == 4
    assert rules.read(*where, b.seen).policy.removes_nothing


def test_a_rule_that_only_newer_versions_know_is_not_half_applied(keeper):
    a = keeper()
    a.take("s0", created=0.0)
    a.take("s1", created=1.0)
    newer = {"generation": 1, "policy": {"keep_last": 1, "unless": "it rains"}}
    a.bucket.create(rules.NAME, a.seal.seal_record(rules.NAME, newer))
    with pytest.raises(FarObjectInvalid):
        a.collects()
    assert a.listed() == ["s0", "s1"]


def test_machines_tell_only_what_they_changed(keeper):
    a = keeper()
    a.take("s0", created=0.0)
    a.take("s1", created=1.0)
    first = told(a.store.manifest("s0").info)
    pinned = msgspec.structs.replace(first, pinned=True)
    renamed = msgspec.structs.replace(first, title="Mine", named=True)
    a.tell("s0", first, pinned, machine="a")
    a.tell("s0", first, renamed, machine="b")
    now = a.entry("s0")
    assert (now.title, now.about.pinned, now.about.named) == ("Mine", True, True)
    # One machine no longer knows what it told: it takes no pin away.
    a.tell("s0", None, first, machine="c")
    assert a.entry("s0") == now
    a.tell("s0", pinned, first, machine="a")
    assert a.entry("s0").about.pinned is False
    # Each machine has its own mark.
    for machine in "ab":
        a.tell("s0", first, Told(relied_on_in="one"), machine=machine)
    a.tell("s0", Told(relied_on_in="one"), first, machine="a")
    assert a.entry("s0").relied_on_by == {"b": "host of b"}
    # The newest names the session.
    a.tell("s1", first, renamed)
    assert a.sessions.get("one").facts.title == "Mine"
    # What is deleted there is not told anything.
    a.sessions.mark_deleted("one", "s0", 5.0)
    assert a.tell("s0", first, pinned) == set()
    # An upload anew does not undo what others have told.
    a.tell("s1", first, pinned)
    entry = msgspec.structs.replace(a.entry("s1"), about=about(a.store.manifest("s1").info))
    a.sessions.add(Facts("one"), entry)
    assert a.entry("s1").about.pinned


def test_what_is_told_while_a_collector_stands_still_at_any_request_is_kept(tmp_path):
    """Another machine pins one snapshot and evicts its copy of another one, and later epochs come, before the collector goes on."""
    outcomes = set()

    def collects(at):
        there = memory_bucket()
        a, other = Keeper(there, tmp_path / f"a{at}"), Keeper(there, tmp_path / f"b{at}")
        with closing(a), closing(other):
            for number in range(4):
                a.take(f"s{number}", *chunks(number, 1), created=number)
            a.rule(keep_last=1)
            infos = [a.store.manifest(f"s{number}").info for number in range(4)]
            kept = set()

            def meanwhile():
                for info, now in ((infos[1], Told(relied_on_in="one")), (infos[2], PINNED)):
                    name = info.snapshot_id
                    change = Amendment(name, ["one"], Told(), now, about(info))
                    kept.update(other.sessions.amend("one", {name: change}, ("b", "second")))
                for _ in range(2):
                    other.collects()

            bucket = stopped(a, at, meanwhile)
            a.collects()
            if bucket.asked < at:
                return False
            for _ in range(2):
                other.collects()
            assert set(other.listed()) == {*kept, "s3"}, at
            assert assert_sound(other) == len(kept) + 1, at
            outcomes.add(tuple(sorted(kept)))
        return True

    assert at_every_request(collects) > 10
    # It was late for both, or for none: one swap removes both.
    assert outcomes == {(), ("s1", "s2")}
