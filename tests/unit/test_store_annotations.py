"""What a user changes of a snapshot lies beside its manifest: pins, titles, notes, and deletions that can be undone."""

import json
import os
import time

import pytest

from jupyter_gpuckpt.errors import FormatTooNew, SnapshotExists, SnapshotNotFound
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.snapshot_records import SnapshotChangeKind
from tests.manifests import manifest
from tests.unit.test_store_local import ONE, TWO, pack_files, put


@pytest.fixture
def heard():
    return []


@pytest.fixture
def store(tmp_path, heard):
    with LocalStore(tmp_path / "store", on_change=heard.append) as store:
        put(store, ONE, TWO)
        store.publish(manifest("s1", ONE, created=1))
        store.publish(manifest("s2", ONE, TWO, created=2))
        heard.clear()
        yield store


@pytest.fixture
def reopened(store):
    """Yield the same store as the next daemon sees it."""
    made = []

    def reopen():
        (made[-1] if made else store).close()
        made.append(LocalStore(store.root))
        return made[-1]

    yield reopen
    for one in made:
        one.close()


def ids(store):
    return [info.snapshot_id for info in store.snapshots()]


def changes(heard):
    return [(one.snapshot_id, one.kernel_id, one.change) for one in heard]


def test_what_is_changed_is_shown_told_and_lasts(store, heard, reopened):
    before = (store.root / "manifests" / "s1.manifest").read_bytes()
    changed = store.annotate("s1", {"title": "before the run", "pinned": True})
    assert (changed.title, changed.note, changed.pinned) == ("before the run", "", True)
    store.annotate("s1", {"note": "two\nlines"})
    store.annotate("s1", {"note": "two\nlines"})  # nothing new
    assert changes(heard) == 2 * [("s1", "k", SnapshotChangeKind.CHANGED)]
    assert store.manifest("s1").info == store.snapshots()[1]
    store = reopened()
    (info,) = [info for info in store.snapshots() if info.snapshot_id == "s1"]
    assert (info.title, info.note, info.pinned) == ("before the run", "two\nlines", True)
    store.annotate("s1", {"title": "", "pinned": False})
    info = store.manifest("s1").info
    assert (info.title, info.note, info.pinned) == ("", "two\nlines", False)
    assert (store.root / "manifests" / "s1.manifest").read_bytes() == before
    assert (store.root / "manifests" / "s1.annotations").stat().st_mode & 0o777 == 0o600
    with pytest.raises(SnapshotNotFound):
        store.annotate("s9", {"title": "x"})


def test_a_deleted_one_is_gone_from_everything_but_can_come_back(store, heard, reopened):
    before = time.time()
    until = store.mark_deleted("s2", 600)
    assert before + 600 <= until.at <= time.time() + 600
    assert ids(store) == ["s1"]
    for use in (store.manifest, store.manifest_file, lambda one: store.mark_deleted(one, 60)):
        with pytest.raises(SnapshotNotFound):
            use("s2")
    with pytest.raises(SnapshotNotFound):
        store.annotate("s2", {"title": "x"})
    with pytest.raises(SnapshotExists, match="s2"):
        store.publish(manifest("s2", ONE))
    # Neither a sweep, nor the end of everything else, nor the next daemon takes what it needs.
    store.delete("s1")
    assert store.purge() == []
    store = reopened()
    (listed,) = store.deleted()
    assert (listed.info.snapshot_id, listed.annotations.kept) == ("s2", until)
    assert store.undelete("s2").snapshot_id == "s2"
    assert store.undelete("s2").snapshot_id == "s2"  # nothing left to do
    assert store.deleted() == []
    store.verify("s2")
    assert changes(heard) == [
        ("s2", "k", SnapshotChangeKind.REMOVED),
        ("s1", "k", SnapshotChangeKind.REMOVED),
    ]


def test_when_its_time_is_over_it_goes_for_good_and_cannot_come_back(store, heard):
    store.annotate("s2", {"title": "dear"})
    store.mark_deleted("s2", 0.01)
    time.sleep(0.02)
    with pytest.raises(SnapshotNotFound):
        store.undelete("s2")
    assert store.purge() == ["s2"]
    assert store.deleted() == []
    assert not list((store.root / "manifests").glob("s2*"))
    store.verify("s1")
    assert [one.change for one in heard] == [SnapshotChangeKind.CHANGED, SnapshotChangeKind.REMOVED]
    store.publish(manifest("s2", ONE))  # an id that is free again has nothing of the former one
    assert store.manifest("s2").info.title == ""


def test_without_a_time_for_second_thoughts_it_goes_at_once(store, heard):
    store.mark_deleted("s2", 0)
    store.mark_deleted("s1", 0)
    assert pack_files(store) == []
    assert [one.change for one in heard] == 2 * [SnapshotChangeKind.REMOVED]


def test_what_cannot_be_read_goes_at_once(store, heard):
    os.truncate(store.root / "manifests" / "s1.manifest", 60)
    store.mark_deleted("s1", 60)
    assert not (store.root / "manifests" / "s1.manifest").exists()
    assert changes(heard) == [("s1", "", SnapshotChangeKind.REMOVED)]


def test_annotations_that_cannot_be_read_count_as_a_pin(store, reopened, caplog):
    beside = store.root / "manifests" / "s1.annotations"
    for content in (b"", b"{", b'{"version": 1, "pinned": "perhaps"}'):
        beside.write_bytes(content)
        (info,) = [info for info in store.snapshots() if info.snapshot_id == "s1"]
        assert info.pinned
    assert "s1.annotations" in caplog.text
    beside.write_text(json.dumps({"version": 2, "deleted_at": 1.0, "color": "red"}))
    assert ids(store) == ["s2", "s1"]
    with pytest.raises(FormatTooNew, match="version 2"):
        store.annotate("s1", {"title": "x"})
    assert json.loads(beside.read_bytes())["color"] == "red"


def test_those_of_a_snapshot_that_is_gone_are_removed_at_the_next_opening(store, reopened):
    store.annotate("s1", {"title": "x"})
    (store.root / "manifests" / "s1.manifest").unlink()  # a delete that a crash cut off
    reopened()
    assert not list((store.root / "manifests").glob("s1*"))


def test_a_flipped_bit_costs_one_snapshot_at_most(store, reopened, caplog):
    """List, delete, prune and the next opening go on, whatever one file of one snapshot has become."""
    store.annotate("s1", {"title": "é", "pinned": False})
    beside = store.root / "manifests" / "s1.annotations"
    content = beside.read_bytes()
    for place in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            beside.write_bytes(flipped)
            assert "s2" in ids(store), flipped
            assert {one.info.snapshot_id for one in store.deleted()} <= {"s1"}
    beside.write_bytes(content.replace("é".encode(), b"\xff\xff"))
    store = reopened()
    assert [info.pinned for info in store.snapshots()] == [False, True]
    weights = store.weights()
    assert [weights.weight(info) for info in store.snapshots()] == [20_000, 10_000]
    store.delete("s2")
    assert ids(store) == ["s1"]
    assert "s1.annotations is damaged" in caplog.text


@pytest.mark.parametrize("suffix", ["annotations", "manifest"])
@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff", None], ids=["deep", "text", "folder"])
def test_whatever_lies_in_the_place_of_a_file_costs_one_snapshot_at_most(
    store, reopened, suffix, content
):
    store.publish(manifest("s3", TWO, created=3))
    path = store.root / "manifests" / f"s1.{suffix}"
    path.unlink(missing_ok=True)
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    store = reopened()
    assert ids(store)[:2] == ["s3", "s2"]
    store.delete("s3")
    assert store.space().snapshots == len(ids(store))
    assert store.manifest("s2").info.snapshot_id == "s2"
