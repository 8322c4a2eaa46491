"""Stubs: a snapshot whose chunks are in a remote stays listed, needs nothing here, and becomes whole again."""

import msgspec
import pytest

from jupyter_gpuckpt.errors import SnapshotExists, SnapshotInRemoteOnly, SnapshotNotFound
from jupyter_gpuckpt.store.codecs import digest_of
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.stub_files import Stub
from jupyter_gpuckpt.store.writer import Record
from jupyter_gpuckpt.wire.manifest_records import Chunk, Sizes, SnapshotInfo, Stream
from tests.manifests import manifest, manifest_of
from tests.remote.stores import chunks
from tests.unit.test_store_local import pack_files, put

#: Of the first snapshot alone, of both, of the second alone; and what a stub keeps.
MINE, SHARED, OTHERS = chunks(1, 9, 20_000), chunks(2, 3, 20_000), chunks(3, 2, 20_000)
KEPT = b"a small stream" * 100
FAR = Stub("offsite", ["kept"])


def with_kept(snapshot_id, *content, kernel_id="k", created=1.0):
    """Return a manifest with a stream that a stub keeps."""
    streams = [
        Stream(name, sum(map(len, parts)), [Chunk(digest_of(part), len(part)) for part in parts])
        for name, parts in (("a", content), ("kept", [KEPT]))
    ]
    sizes = Sizes(1_000_000, 900_000, 900_000)
    return manifest_of(SnapshotInfo(snapshot_id, kernel_id, created, "save", sizes=sizes), *streams)


def fill(store):
    """Make two snapshots that share some chunks."""
    put(store, *MINE, *SHARED, KEPT)
    store.publish(with_kept("s1", *MINE, *SHARED))
    put(store, *OTHERS)
    store.publish(manifest("s2", *SHARED, *OTHERS, created=2.0))


def bring_back(store, snapshot_id, *content):
    """Store chunks again and make a stub whole, as a fetch does."""
    with store.writer() as writer:
        for chunk in content:
            writer.append_all([Record(digest_of(chunk), chunk, len(chunk), 0)])
        writer.finish()
        store.stubs.end(snapshot_id)


def has(store, chunk):
    """Return whether the store has a chunk."""
    return len(store.find([digest_of(chunk)]).rows) == 1


@pytest.fixture
def store(tmp_path):
    """Return a store with two snapshots."""
    with LocalStore(tmp_path / "store") as store:
        fill(store)
        yield store


def check_stub(store):
    """Check that the first snapshot is a stub of which only what it keeps is here, and that the other is whole."""
    assert [info.snapshot_id for info in store.snapshots()] == ["s2", "s1"]
    assert store.stubs.all() == {"s1": FAR}
    assert [has(store, chunk) for chunk in (*MINE, KEPT)] == [False] * len(MINE) + [True]
    assert store.load(digest_of(KEPT)) == KEPT
    assert store.manifest("s1").info.snapshot_id == "s1"
    store.verify("s2")


def test_chunks_of_a_stub_go_and_it_stays_listed_over_all_that_makes_records_again(store, tmp_path):
    before = sum(path.stat().st_size for path in pack_files(store))
    assert store.stubs.make("s1", FAR)
    assert store.collect() > 0
    check_stub(store)
    # The pack that holds what is shared and kept was written anew.
    after = sum(path.stat().st_size for path in pack_files(store))
    assert before - after > sum(map(len, MINE)) - 1000
    store._catalog.database.remake()
    check_stub(store)
    assert store.collect() == 0
    check_stub(store)
    store.close()
    for again in range(2):
        with LocalStore(tmp_path / "store") as opened:
            check_stub(opened)
            assert opened.collect() == 0
            check_stub(opened)
            bring_back(opened, "s1", *MINE)
            assert opened.stubs.all() == {}
            opened.collect()
            opened.verify("s1")
            opened.verify("s2")
            assert opened.stubs.make("s1", FAR)
            assert opened.collect() > 0
        if not again:
            (tmp_path / "store/catalog.sqlite").unlink()


def test_figures_count_a_stub_as_remote_and_retention_as_weightless(store):
    whole = store.space()
    assert (whole.remote_snapshots, whole.remote_bytes, whole.snapshots) == (0, 0, 2)
    store.stubs.make("s1", FAR)
    store.collect()
    space = store.space()
    assert (space.remote_snapshots, space.remote_bytes, space.snapshots) == (1, 900_000, 2)
    assert space.stored_bytes == sum(map(len, [*SHARED, *OTHERS]))
    assert space.raw_bytes == 0  # the other one states no size
    assert space.disk_bytes < whole.disk_bytes
    weights = store.weights()
    one, other = sorted(store.snapshots(), key=lambda info: info.created)
    assert (weights.weight(one), weights.weight(other)) == (len(KEPT), space.stored_bytes)


def test_what_is_used_pinned_or_deleted_does_not_become_a_stub(store):
    with store.stubs.using("s1"):
        assert not store.stubs.make("s1", FAR)
    store.annotate("s1", {"pinned": True})
    assert not store.stubs.make("s1", FAR)
    store.annotate("s1", {"pinned": False})
    store.mark_deleted("s1", 60.0)
    assert not store.stubs.make("s1", FAR)
    store.undelete("s1")
    assert not store.stubs.make("s3", FAR)
    assert store.stubs.all() == {}
    assert store.stubs.make("s1", FAR)
    assert not store.stubs.make("s1", FAR)
    with (
        pytest.raises(SnapshotInRemoteOnly, match="only in remote offsite") as caught,
        store.stubs.using("s1"),
    ):
        pass
    assert "remote fetch offsite s1" in caught.value.command


def test_a_stub_is_deleted_and_undeleted_as_a_snapshot(store, tmp_path):
    store.stubs.make("s1", FAR)
    store.mark_deleted("s1", 60.0)
    assert [info.snapshot_id for info in store.snapshots()] == ["s2"]
    store.undelete("s1")
    store.collect()
    check_stub(store)
    store.delete("s1")
    with pytest.raises(SnapshotNotFound):
        store.manifest("s1")
    assert store.stubs.all() == {}
    assert not list((tmp_path / "store/manifests").glob("s1*"))
    store.verify("s2")


def test_a_stub_without_its_manifest_makes_no_stub_of_the_next_snapshot_of_that_id(store, tmp_path):
    store.stubs.make("s1", FAR)
    folder = tmp_path / "store/manifests"
    content = (folder / "s1.stub").read_bytes()
    with pytest.raises(SnapshotExists):
        store.publish(with_kept("s1", *MINE, *SHARED))
    store.delete("s1")
    (folder / "s1.stub").write_bytes(content)  # what a crash in the middle of the deletion leaves
    put(store, *MINE, KEPT)
    store.publish(with_kept("s1", *MINE, *SHARED))
    store.collect()
    store.verify("s1")
    assert store.stubs.all() == {}
    (folder / "s9.stub").write_bytes(content)
    store.close()
    with LocalStore(tmp_path / "store"):
        assert not (folder / "s9.stub").exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"remote": 5}', b'{"version": 99}', b'{"remote": "a/b"}', b"\xff" * 50]
)
def test_a_damaged_stub_is_one_all_the_same_and_loses_nothing_that_is_here(
    store, tmp_path, content
):
    path = tmp_path / "store/manifests/s1.stub"
    path.write_bytes(content)
    assert store.collect() == 0
    assert store.stubs.all() == {"s1": Stub()}
    with pytest.raises(SnapshotInRemoteOnly, match="only in a remote"):
        store.stubs.require_here("s1")
    store.stubs.end("s1")
    store.verify("s1")
    # And where chunks have gone before it was damaged, the others stay.
    store.stubs.make("s1", FAR)
    store.collect()
    path.write_bytes(content)
    store.collect()
    assert has(store, KEPT)
    store.verify("s2")


def test_a_list_is_made_from_records_also_of_stubs(store, tmp_path, monkeypatch):
    store.stubs.make("s1", FAR)
    store.collect()
    store.close()
    with LocalStore(tmp_path / "store") as opened:
        monkeypatch.setattr("jupyter_gpuckpt.store.manifests.read", None)
        assert [info.snapshot_id for info in opened.snapshots()] == ["s2", "s1"]
        assert opened.stubs.all() == {"s1": FAR}


def test_the_last_use_is_kept_beside_what_a_user_changed(store):
    store.annotate("s1", {"title": "mine"})
    before = store.snapshots()
    store.stubs.note_use("s1")
    assert store.snapshots() == before
    used = store.stubs.last_uses()
    assert used["s1"] > used["s2"] == 2.0
    assert msgspec.structs.asdict(store.manifest("s1").info)["title"] == "mine"
