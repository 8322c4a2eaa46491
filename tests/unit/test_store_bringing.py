"""Snapshots come from a store beside this one by links, and a store that was left is taken in as a whole."""

import errno
import os

import pytest

from jupyter_gpuckpt.errors import StoreUnavailable
from jupyter_gpuckpt.store import bringing, stores
from jupyter_gpuckpt.store.local import LocalStore
from tests.remote.installations import content_of, save, some_chunks

OLD, NEW, OTHER = (some_chunks(number, 2) for number in (1, 2, 3))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def two(root, monkeypatch):
    """Return a store that is in use, and one that a second daemon got beside it."""
    monkeypatch.setattr(stores, "_ENDING_SECONDS", 0.0)  # the process that has it does not end
    first = stores.open_free(root, lambda: True)
    second = stores.open_free(root, lambda: True)
    yield first, second
    first.close()
    second.close()


def inodes(store):
    return {path.name: path.stat().st_ino for path in (store.root / "packs").glob("*.pack")}


def test_each_daemon_gets_a_store_of_its_own_and_the_first_that_is_free(two, root):
    first, second = two
    assert (first.root, second.root) == (root, root.with_name("store-2"))
    assert stores.others(root, first) == [second.root]
    assert stores.abandoned(root, first, lambda: True) == []
    first.close()
    assert stores.abandoned(root, second, lambda: True) == [first.root]
    with stores.open_free(root, lambda: True) as third:
        assert third.root == root
    with pytest.raises(StoreUnavailable, match="in use by process"):
        LocalStore(second.root)


def test_where_locks_may_not_reach_others_a_store_that_names_another_host_is_not_touched(
    root, monkeypatch
):
    monkeypatch.setattr(stores, "locks_reach_all", lambda folder: False)
    (root / "manifests").mkdir(parents=True)
    (root / "packs").mkdir()
    (root / "lock").write_text('{"host": "another", "boot": "another", "pid": 7}')
    with stores.open_free(root, lambda: True) as second:
        assert second.root == root.with_name("store-2")
        assert stores.abandoned(root, second, lambda: True) == []
        # Nobody is heard of any more.
        assert stores.abandoned(root, second, lambda: False) == [root]


def test_a_kernels_snapshots_come_by_links(two):
    first, second = two
    save(first, "s1", *OLD, created=1.0)
    save(first, "s2", *OLD[:1], *NEW, created=2.0)
    save(first, "other", *OTHER)
    first.annotate("s1", {"note": "mine", "pinned": True})
    known = {}
    for kernel_id in ("of-s1", "of-s2", "of-s1"):
        bringing.bring_kernel(second, [first.root], kernel_id, known)
    assert {info.snapshot_id for info in second.snapshots()} == {"s1", "s2"}
    assert content_of(second, "s2") == [OLD[0], *NEW]
    [info] = [info for info in second.snapshots() if info.snapshot_id == "s1"]
    assert (info.note, info.pinned) == ("mine", True)
    links = inodes(second).items()
    assert links <= inodes(first).items()
    assert len(links) == 2
    # Each removes its own.
    first.delete("s1", "s2")
    assert content_of(second, "s1") == OLD
    second.delete("s1")
    second.verify("s2")
    # What is deleted there does not come.
    first.mark_deleted("other", 60.0)
    bringing.bring_kernel(second, [first.root], "of-other", known)
    assert [info.snapshot_id for info in second.snapshots()] == ["s2"]


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM])
def test_where_there_are_no_links_packs_are_copied(two, monkeypatch, number):
    first, second = two
    save(first, "s1", *OLD)

    def refuse(*arguments):
        raise OSError(number, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert bringing.bring(second, first.root, "s1")
    assert content_of(second, "s1") == OLD
    assert inodes(second).keys() == inodes(first).keys()
    assert inodes(second) != inodes(first)


def test_what_lacks_a_pack_is_left_out_and_leaves_nothing(two, caplog):
    first, second = two
    save(first, "s1", *OLD)
    save(first, "s2", *NEW)
    for path in (first.root / "packs").glob("*.pack"):
        path.unlink()
        break
    for kernel_id in ("of-s1", "of-s2"):
        bringing.bring_kernel(second, [first.root], kernel_id, {})
    assert len(second.snapshots()) == 1
    assert "cannot be brought here" in caplog.text


def test_a_store_that_was_left_is_taken_in(two):
    first, second = two
    save(second, "s1", *OLD)
    save(second, "s2", *NEW)
    second.mark_deleted("s2", 3600.0)
    # Not while somebody has it, nor while a deletion can be undone.
    assert not bringing.take_in(first, second.root)
    assert first.snapshots() == []
    second.close()
    assert not bringing.take_in(first, second.root)
    assert [info.snapshot_id for info in first.snapshots()] == ["s1"]
    with LocalStore(second.root) as again:
        again.undelete("s2")
    bringing.take_all_in(first, [second.root])
    assert {info.snapshot_id for info in first.snapshots()} == {"s1", "s2"}
    assert [path.name for path in first.root.parent.iterdir()] == ["store"]
    assert content_of(first, "s2") == NEW
