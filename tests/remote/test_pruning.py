"""What a prune removes from a remote of the snapshots of all machines, and what it never removes."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import timedelta

import msgspec
import pytest

from jupyter_gpuckpt.remote import unneeded
from jupyter_gpuckpt.remote.collector import Collector, collect
from jupyter_gpuckpt.remote.listed_facts import About, Amendment, Told, about, told
from jupyter_gpuckpt.remote.remote_sessions import Facts
from jupyter_gpuckpt.wire.manifest_records import Cause
from jupyter_gpuckpt.wire.retention_policy import RetentionPolicy
from tests.manifests import manifest
from tests.remote.conftest import memory_bucket
from tests.remote.stores import Machine, chunks, mark_deleted
from tests.remote.test_collect import assert_sound, at_every_request, stopped
from tests.unit.test_store_local import put

PINNED = Told(pinned=True)


class Keeper(Machine):
    """A machine with snapshots of several sessions, that prunes and collects."""

    def take(self, snapshot_id, *content, created, session="one", **changes):
        """Take an automatic snapshot, unless `changes` says otherwise, and upload it."""
        content = content or chunks(hash_of(snapshot_id), 6)
        put(self.store, *content)
        made = manifest(snapshot_id, *content, kernel_id=session, created=created)
        changes = {"cause": Cause.AUTOSAVE} | changes
        info = msgspec.structs.replace(made.info, **changes)
        self.store.publish(msgspec.structs.replace(made, info=info))
        self.uploader().upload(self.store, snapshot_id, Facts(session, path=f"{session}.ipynb"))

    def prunes(self, now=5.0, **policy):
        """Remove snapshots by rules; return how many."""
        return len(unneeded.remove(self.sessions, self.verdicts(**policy), now))

    def collects(self):
        """Run the collector, which waits for no day of grace; return the result."""
        return collect(self.bucket, self.seal, self.seen, min_age=timedelta(0))

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

    def verdicts(self, **policy):
        found = unneeded.all_of(self.sessions)
        packs_of = Collector(self.bucket, self.seal, self.seen).packs_of
        return unneeded.judge(found, RetentionPolicy(**policy), packs_of)

    def judged(self, **policy):
        verdicts = self.verdicts(**policy)
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


def test_a_prune_removes_from_all_sessions_what_any_machine_uploaded(keeper):
    a, b = keeper("a"), keeper("b")
    for number in range(3):
        a.take(f"a{number}", created=number)
        b.take(f"b{number}", created=number, session="two")
    packs = len(a.bucket.list("packs"))
    assert (a.prunes(), b.prunes(keep_last=3)) == (0, 0)
    assert b.prunes(keep_last=2) == 2
    assert a.listed() == ["a1", "a2", "b1", "b2"]
    for _ in range(3):
        b.collects()
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
        assert a.prunes(keep_last=1) == 1
        assert a.listed() == ["a1"]


def test_no_rule_removes_what_a_user_may_want(keeper):
    a = keeper()
    a.take("pinned", created=1.0, pinned=True)
    a.take("titled", created=2.0, title="Before the merge")
    a.take("noted", created=3.0, note="The good one.")
    a.take("by-hand", created=4.0, cause=Cause.MANUAL)
    a.take("only-there", created=5.0)
    a.take("of-a-newer-version", created=7.0)
    a.take("plain", created=8.0)
    a.take("newest", created=9.0)
    a.take("alone", created=0.5, session="never-came-back")
    a.tell("only-there", None, Told(relied_on_in="one"), machine="laptop")
    _change(a, "of-a-newer-version", about=About("dream", "save", pinned=False, named=False))
    policies = ({"keep_last": 1}, {"keep_last": 1, "max_bytes": 1}, {"max_bytes": 1})
    for policy in policies:
        verdicts = a.judged(**policy)
        assert [name for name, one in verdicts.items() if one[0]] == ["plain"]
    reasons = {name: why for name, (_, why) in verdicts.items()}
    assert reasons["only-there"] == "machine host of laptop relies on it"
    assert reasons["titled"] == reasons["noted"] == unneeded.NAMED
    assert reasons["newest"] == reasons["alone"] == unneeded.NEWEST
    assert reasons["of-a-newer-version"] == unneeded.NEWER
    assert (reasons["pinned"], reasons["by-hand"]) == ("it is pinned", "taken by hand")
    # With `manual_too` the one that is neither pinned nor named goes.
    by_hand = a.judged(keep_last=1, manual_too=True)
    assert [name for name, one in by_hand.items() if one[0]] == ["plain", "by-hand"]
    for count in (2, 0):
        assert a.prunes(keep_last=1, max_bytes=1, manual_too=True) == count
        a.collects()
    assert len(a.listed()) == 7


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
    verdicts = a.verdicts()
    total = sum(one.size for one in a.bucket.list("packs"))
    # Each counted on its own would take far more than all together.
    assert sum(one.snapshot.stored_bytes for one in verdicts) == 0
    assert not any(removed for removed, _ in a.judged(max_bytes=total).values())
    verdicts = a.judged(max_bytes=total - 1)
    assert [name for name, one in verdicts.items() if one[0]] == ["s0"]
    a.prunes(max_bytes=total - 1)
    for _ in range(2):
        a.collects()
    assert sum(one.size for one in a.bucket.list("packs")) < total


def test_what_changes_after_the_verdict_is_spared(keeper):
    a = keeper()
    for number in range(4):
        a.take(f"s{number}", created=number)
    verdicts = a.verdicts(keep_last=1)
    assert a.tell("s1", Told(), Told(pinned=True)) == {"s1"}
    # The verdicts on the others may differ now, so the next prune judges them again.
    assert unneeded.remove(a.sessions, verdicts, 5.0) == set()
    assert a.prunes(keep_last=1) == 2
    assert a.listed() == ["s1", "s3"]


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
    a.tell("s0", Told(relied_on_in="one"), first, machine="b")
    mark_deleted(a.sessions, "one", "s0", 5.0)
    assert a.tell("s0", first, pinned) == set()
    # An upload anew does not undo what others have told.
    a.tell("s1", first, pinned)
    entry = msgspec.structs.replace(a.entry("s1"), about=about(a.store.manifest("s1").info))
    a.sessions.add(Facts("one"), entry)
    assert a.entry("s1").about.pinned


@pytest.mark.slow
def test_what_is_told_while_a_prune_is_stopped_at_any_request_is_kept(tmp_path):
    """Another machine pins one snapshot and evicts its copy of another one, and later epochs come, before the prune continues."""
    outcomes = set()

    def prunes(at):
        there = memory_bucket()
        a, other = Keeper(there, tmp_path / f"a{at}"), Keeper(there, tmp_path / f"b{at}")
        with closing(a), closing(other):
            for number in range(4):
                a.take(f"s{number}", *chunks(number, 1), created=number)
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
            a.prunes(keep_last=1)
            a.collects()
            if bucket.asked < at:
                return False
            # Entries that changed after the verdict spare the others until the next prune.
            other.prunes(keep_last=1)
            for _ in range(2):
                other.collects()
            assert set(other.listed()) == {*kept, "s3"}, at
            assert assert_sound(other) == len(kept) + 1, at
            outcomes.add(tuple(sorted(kept)))
        return True

    assert at_every_request(prunes) > 10
    # It was late for both, or for none: one swap removes both.
    assert outcomes == {(), ("s1", "s2")}


def test_uploads_thin_the_periodic_saves_of_their_session_only(keeper):
    a = keeper()
    a.take("other", created=0, session="two")
    a.take("mine", created=5, title="mine")
    a.take("idle", created=6, cause=Cause.IDLE)
    for created in (10, 320, 330, 340, 3600):
        a.take(f"p{created}", created=created)
    # Of the five minutes from 300 on the last one is kept.
    assert a.listed() == ["idle", "mine", "other", "p10", "p340", "p3600"]
    deleted = [one for one in a.sessions.get("one").snapshots if one.deleted_at]
    assert {one.snapshot_id for one in deleted} == {"p320", "p330"}
    # They count as deleted now, by the remote's clock, so whoever fetches one of them has a day.
    assert all(abs(one.deleted_at - time.time()) < 3600 for one in deleted)
    a.collects()
    assert len(a.sessions.get("one").snapshots) == 5


def test_a_periodic_save_that_a_machine_relies_on_is_not_thinned(keeper):
    a = keeper()
    a.take("p10", created=10)
    a.tell("p10", None, Told(relied_on_in="one"))
    for created in (20, 30, 200):
        a.take(f"p{created}", created=created)
    assert a.listed() == ["p10", "p200", "p30"]


def test_a_remote_that_deletes_nothing_keeps_all_periodic_saves(keeper):
    a = keeper()
    a.bucket.deletes = False
    for created in (10, 20, 3600):
        a.take(f"p{created}", created=created)
    assert a.listed() == ["p10", "p20", "p3600"]
