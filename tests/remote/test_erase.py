"""What is erased is nowhere in the bucket, and all else comes back byte for byte, whoever stops or uploads meanwhile."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import pytest

from jupyter_gpuckpt.errors import ConfigurationError, RemoteObjectMissing, StoreUnavailable
from jupyter_gpuckpt.remote import (
    collector,
    epochs,
    index_objects,
    pack_refs,
    remote_manifests,
    remote_packs,
)
from jupyter_gpuckpt.remote.buckets import Bucket
from jupyter_gpuckpt.remote.checking import open_packs
from jupyter_gpuckpt.remote.collector import collect
from jupyter_gpuckpt.remote.remote_sessions import Facts, ManifestErased
from jupyter_gpuckpt.store.codecs import digest_of
from jupyter_gpuckpt.wire.remote_records import Erasure
from tests.remote.conftest import memory_bucket, quick
from tests.remote.stores import PACK_BYTES, Machine, chunks, mark_deleted

#: What only the erased session has, what both have, and what only the other one has.
SECRET, SHARED, OTHER = chunks(1, 12), chunks(2, 6), chunks(3, 12)
#: Secret and shared chunks lie in the same packs, and so do they in those of the other session.
MIXED = [one for pair in zip(SECRET, SHARED * 2, strict=True) for one in pair]


def upload(machine, snapshot_id, session_id):
    facts = Facts(session_id, path=f"{session_id}.ipynb")
    return machine.uploader().upload(machine.store, snapshot_id, facts)


def two_sessions(machine):
    """Upload a snapshot of a session that is to be erased, and one of another that shares its packs."""
    machine.save("s1", *MIXED)
    upload(machine, "s1", "gone")
    machine.save("s2", *SHARED, *OTHER)
    upload(machine, "s2", "stays")


def erased(machine, session_id="gone"):
    return collector.erase(machine.bucket, machine.seal, machine.seen, session_id)


@pytest.fixture(autouse=True)
def small_packs(monkeypatch):
    monkeypatch.setattr(collector, "PACK_BYTES", PACK_BYTES)


def content_of(machine, snapshot_id):
    return [
        machine.store.load(chunk.digest)
        for stream in machine.store.manifest(snapshot_id).streams
        for chunk in stream.chunks
    ]


def in_packs(machine):
    """Return the remote ids of all chunks in the bucket, as the packs themselves say it."""
    found = set()
    for one in machine.bucket.list("packs"):
        end = machine.bucket.get_range(one.name, one.size - remote_packs.TRAILER_BYTES, one.size)
        length, _, _ = remote_packs._TRAILER.unpack(end)
        ref = pack_refs.PackRef(one.name, one.size, length + remote_packs.TRAILER_BYTES)
        [pack] = open_packs(machine.bucket, machine.seal, [ref])
        found |= {bytes(row) for row in pack.rows["id"].tolist()}
    return found


def assert_nothing_left(machine, session_id="gone", secret=SECRET):
    """Nothing in the bucket says anything of the session, or holds what only it had."""
    seal = machine.seal
    secrets = {seal.remote_id(digest_of(one)) for one in secret}
    assert secrets.isdisjoint(in_packs(machine))
    index, _ = index_objects.load(machine.bucket, seal)
    assert not index.find(secrets)
    for one in machine.bucket.list("manifests"):
        at_remote = remote_manifests.read(machine.bucket, seal, one.name)
        assert at_remote.session_id != session_id
    session = machine.sessions.get(session_id)
    assert (session.facts, session.snapshots) == (Facts(session_id), [])


def assert_comes_back(bucket, folder, session_id="stays", snapshot_id="s2", content=None):
    """Check that a machine without content fetches the snapshot byte for byte."""
    with closing(Machine(bucket, folder)) as reader:
        reader.fetch(snapshot_id, session_id)
        assert content_of(reader, snapshot_id) == (content or [*SHARED, *OTHER])


def assert_all_listed_is_whole(machine):
    packs = {one.name: one.size for one in machine.bucket.list("packs")}
    for session_id in machine.sessions.ids():
        for one in machine.sessions.get(session_id).listed:
            at_remote = remote_manifests.read(
                machine.bucket, machine.seal, one.manifest, one.digest
            )
            lost = [ref.name for ref in at_remote.packs if packs.get(ref.name) != ref.length]
            assert not lost, f"{one.snapshot_id} lacks {lost}"


def test_a_session_is_erased_and_another_that_shares_its_packs_comes_back(bucket, tmp_path):
    with closing(Machine(bucket, tmp_path / "a")) as a:
        two_sessions(a)
        before = sum(one.size for one in bucket.list("packs"))
        done = erased(a)
        assert (done.snapshots, done.left) == (1, 0)
        assert done.rewritten > 0
        assert done.removed > done.rewritten / 2
        assert done.freed_bytes == before - sum(one.size for one in bucket.list("packs"))
        assert done.freed_bytes > 8 * 20_000 / 2
        assert_nothing_left(a)
        assert_comes_back(bucket, tmp_path / "b")
        # Nothing is left to do, and what is there can be shared and added to as before.
        assert erased(a) == Erasure(0, 0, 0, 0, 0)
        a.save("s3", *SHARED, *OTHER, *SECRET[:1])
        sent = upload(a, "s3", "gone").sent
        assert sent.packs == 1
        assert_comes_back(
            bucket, tmp_path / "c", "gone", "s3", content=[*SHARED, *OTHER, *SECRET[:1]]
        )


def test_what_shares_nothing_is_not_written_anew(tmp_path):
    with closing(Machine(memory_bucket(), tmp_path / "a")) as a:
        a.save("s1", *SECRET)
        a.save("s2", *SHARED, *OTHER)
        upload(a, "s1", "gone")
        upload(a, "s2", "stays")
        there = {one.name for one in a.bucket.list("packs")}
        listed = a.sessions.get("stays")
        done = erased(a)
        assert done.rewritten == 0
        assert {one.name for one in a.bucket.list("packs")} < there
        assert a.sessions.get("stays") == listed
        assert_nothing_left(a)


def test_deleted_snapshots_and_uploads_that_were_cut_off_are_erased_with_their_session(tmp_path):
    with closing(Machine(memory_bucket(), tmp_path / "a")) as a:
        two_sessions(a)
        a.save("s3", *chunks(4))
        upload(a, "s3", "gone")
        mark_deleted(a.sessions, "gone", "s3", 1.0)
        a.save("s4", *chunks(5))

        def cut_off(*_):
            raise StoreUnavailable("the line was cut")

        uploader = a.uploader()
        uploader._sessions.add = cut_off
        with pytest.raises(StoreUnavailable):
            uploader.upload(a.store, "s4", Facts("gone"))
        assert erased(a).left == 0
        assert_nothing_left(a, secret=[*SECRET, *chunks(4), *chunks(5)])
        # And the one that was cut off goes up when it is tried again.
        upload(a, "s4", "gone")
        assert_comes_back(a.bucket, tmp_path / "b", "gone", "s4", content=chunks(5))


def test_a_session_that_is_not_there_is_not_erased(tmp_path):
    with closing(Machine(memory_bucket(), tmp_path / "a")) as a:
        two_sessions(a)
        with pytest.raises(RemoteObjectMissing):
            erased(a, "unknown")
        assert a.sessions.ids() == ["gone", "stays"]


def test_where_nothing_can_be_deleted_nothing_is_begun(tmp_path):
    with closing(Machine(memory_bucket(), tmp_path / "a")) as a:
        two_sessions(a)
        a.bucket.deletes = False
        with pytest.raises(ConfigurationError, match="refuses to delete"):
            erased(a)
        assert len(a.sessions.get("gone").listed) == 1


def test_what_the_remote_refuses_to_delete_is_told_and_goes_when_it_is_erased_again(tmp_path):
    with closing(Machine(memory_bucket(), tmp_path / "a")) as a:
        two_sessions(a)
        delete = a.bucket.delete
        a.bucket.delete = list
        done = erased(a)
        # A manifest of the session, and the packs.
        assert done.left > 2
        assert_comes_back(a.bucket, tmp_path / "b")
        a.bucket.delete = delete
        assert erased(a).left == 0
        assert_nothing_left(a)
        assert_comes_back(a.bucket, tmp_path / "c")


class _Crash(Exception):  # noqa: N818 - an event
    pass


class Stopping(Bucket):
    """A bucket where something happens before its n-th request."""

    def __init__(self, below, at, then):
        super().__init__(below._store, "stopping", retries=quick())
        self.at, self.then, self.asked = at, then, 0

    def _once(self, work, name):
        self.asked += 1
        if self.asked == self.at:
            self.then()
        return super()._once(work, name)


#: Every eleventh request is enough for every day.
STEPS = pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.slow)])


def at_every(step, attempt):
    """Have something happen at a request of an attempt, then at a later one, and so on; how often."""
    times = 0
    while attempt(1 + times * step):
        times += 1
    return times


def crash():
    raise _Crash


@STEPS
def test_after_a_crash_at_any_request_nothing_is_lost_and_the_next_attempt_completes(
    tmp_path, step
):
    def crashes(at):
        there = memory_bucket()
        with closing(Machine(there, tmp_path / f"a{at}")) as a:
            two_sessions(a)
            a.bucket = bucket = Stopping(there, at, crash)
            try:
                erased(a)
            except _Crash:
                a.bucket = there
                assert_all_listed_is_whole(a)
                assert_comes_back(there, tmp_path / f"b{at}")
                # Before the first swap nothing has happened yet.
                assert erased(a).left == 0
            a.bucket = there
            assert_nothing_left(a)
            assert_comes_back(there, tmp_path / f"c{at}")
        return bucket.asked >= at

    assert at_every(step, crashes) > 5


def test_a_collector_completes_an_erasing_that_was_cut_off(tmp_path):
    there = memory_bucket()
    with closing(Machine(there, tmp_path / "a")) as a:
        a.save("s1", *SECRET)
        upload(a, "s1", "gone")
        a.save("s2", *OTHER)
        upload(a, "s2", "stays")
        a.sessions.empty("gone", set())
        for _ in range(3):
            collect(there, a.seal, a.seen, min_age=timedelta(0))
        assert_nothing_left(a)
        assert_comes_back(there, tmp_path / "b", content=OTHER)


@STEPS
@pytest.mark.parametrize("session_id", ["stays", "new", "gone"])
def test_an_upload_during_which_a_session_is_erased_lists_only_what_is_there(
    tmp_path, session_id, step
):
    def uploads(at):
        there = memory_bucket()
        a, other = Machine(there, tmp_path / f"a{at}"), Machine(there, tmp_path / f"b{at}")
        with closing(a), closing(other):
            two_sessions(a)
            # It rests on packs that are to be written anew, and on some that are to go.
            content = [*SHARED, *SECRET[:2], *chunks(4, 2)]
            a.save("s3", *content)
            a.bucket = bucket = Stopping(there, at, lambda: erased(other))
            upload(a, "s3", session_id)
            if bucket.asked >= at:
                assert_all_listed_is_whole(other)
                assert_comes_back(there, tmp_path / f"c{at}")
                assert_comes_back(there, tmp_path / f"d{at}", session_id, "s3", content)
                assert not a.sessions.get("gone").erased or erased(other, "gone").left == 0
        return bucket.asked >= at

    assert at_every(step, uploads) > 1


@STEPS
def test_an_erasing_during_which_others_upload_collect_and_erase_loses_nothing(tmp_path, step):
    def erases(at):
        there = memory_bucket()
        a, other = Machine(there, tmp_path / f"a{at}"), Machine(there, tmp_path / f"b{at}")
        with closing(a), closing(other):
            two_sessions(a)
            other.save("s3", *SHARED, *OTHER, *SECRET[:2], *chunks(4, 2))
            a.save("s4", *chunks(5, 4), *SHARED[:2])
            upload(a, "s4", "third")

            def meanwhile():
                upload(other, "s3", "stays")
                for _ in range(2):
                    collect(there, other.seal, other.seen, min_age=timedelta(0))
                erased(other, "third")

            a.bucket = bucket = Stopping(there, at, meanwhile)
            erased(a)
            a.bucket = there
            assert_all_listed_is_whole(other)
            assert_comes_back(there, tmp_path / f"c{at}")
            if bucket.asked >= at:
                content = [*SHARED, *OTHER, *SECRET[:2], *chunks(4, 2)]
                assert_comes_back(there, tmp_path / f"d{at}", "stays", "s3", content)
                assert erased(a).left == 0
                assert_nothing_left(a, secret=SECRET[2:])
                assert_nothing_left(a, "third", chunks(5, 4))
        return bucket.asked >= at

    assert at_every(step, erases) > 5


@pytest.mark.parametrize("session_id", ["stays", "new", "gone"])
def test_an_upload_that_is_overtaken_just_before_it_lists_its_manifest_writes_another(
    tmp_path, session_id
):
    there = memory_bucket()
    a, other = Machine(there, tmp_path / "a"), Machine(there, tmp_path / "b")
    with closing(a), closing(other):
        two_sessions(a)
        content = [*SHARED, *SECRET[:2], *chunks(4, 2)]
        a.save("s3", *content)
        uploader, names = a.uploader(), []
        add = uploader._sessions.add

        def late(facts, snapshot, *rest):
            names.append(snapshot.manifest)
            if len(names) == 1:
                assert erased(other).left == 0
            return add(facts, snapshot, *rest)

        uploader._sessions.add = late
        uploader.upload(a.store, "s3", Facts(session_id, path=f"{session_id}.ipynb"))
        assert len(set(names)) == 2
        assert {one.name for one in there.list("manifests")}.isdisjoint(names[:1])
        assert_all_listed_is_whole(other)
        assert_comes_back(there, tmp_path / "c")
        assert_comes_back(there, tmp_path / "d", session_id, "s3", content)


def test_a_collector_that_looks_while_manifests_are_replaced_takes_nothing_for_unneeded(tmp_path):
    there = memory_bucket()
    a, other = Machine(there, tmp_path / "a"), Machine(there, tmp_path / "b")
    with closing(a), closing(other):
        two_sessions(a)
        listing, times = a.bucket.list, []
        a.bucket = Bucket(there._store, "memory", retries=quick())

        def stale(folder):
            found = listing(folder)
            if folder == "manifests" and not times:
                times.append(folder)
                eraser = collector.Collector(there, other.seal, other.seen)
                eraser.mark("gone")
                assert eraser.rewrite()[0] > 0
            return found

        a.bucket.list = stale
        collect(a.bucket, a.seal, a.seen, min_age=timedelta(0))
        assert times
        [one] = other.sessions.get("stays").listed
        needed = {ref.name for ref in remote_manifests.read(there, a.seal, one.manifest).packs}
        number = epochs.read(there, a.seal, a.seen).epoch.number
        assert needed.isdisjoint(epochs.read_list(there, a.seal, number))
        assert erased(a).left == 0
        assert_nothing_left(a)
        assert_comes_back(there, tmp_path / "c")


def test_a_machine_that_does_not_know_yet_lists_no_manifest_that_was_replaced(tmp_path):
    there = memory_bucket()
    with closing(Machine(there, tmp_path / "a")) as a:
        two_sessions(a)
        [before] = a.sessions.get("stays").listed
        erased(a)
        # As one does whose answer was lost.
        with pytest.raises(ManifestErased):
            a.sessions.add(Facts("stays"), before)
        assert upload(a, "s2", "stays").sent.packs == 0
        assert_comes_back(there, tmp_path / "b")


def test_what_is_known_of_a_session_is_not_taken_for_older_when_it_is_there_again(tmp_path):
    there = memory_bucket()
    a, other = Machine(there, tmp_path / "a"), Machine(there, tmp_path / "b")
    with closing(a), closing(other):
        for name in ("s1", "s2"):
            a.save(name, *chunks(1, 3))
            upload(a, name, "gone")
        assert other.sessions.get("gone").generation == 2
        erased(a)
        upload(a, "s2", "gone")
        assert [one.snapshot_id for one in other.sessions.get("gone").listed] == ["s2"]


def test_manifests_say_which_session_lists_them(tmp_path):
    with closing(Machine(memory_bucket(), tmp_path / "a")) as a:
        two_sessions(a)
        [one] = a.sessions.get("gone").listed
        at_remote = remote_manifests.read(a.bucket, a.seal, one.manifest)
        assert at_remote.session_id == "gone"
