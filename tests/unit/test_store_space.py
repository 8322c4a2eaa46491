"""What snapshots take: counted once where it is the same, and whose it is."""

import os

import msgspec
import pytest

from jupyter_gpuckpt.store import manifests
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.manifest_records import Sizes
from tests.manifests import manifest
from tests.unit.test_store_local import pack_files, put

A, B, C, D = (os.urandom(10_000 * number) for number in range(1, 5))


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "store") as store:
        yield store


def publish(store, snapshot_id, name, *chunks, created, kernel_id=""):
    made = manifest(snapshot_id, *chunks, created=created, kernel_id=kernel_id or name)
    new = put(store, *chunks)
    raw = sum(map(len, chunks))
    info = msgspec.structs.replace(made.info, name=name, sizes=Sizes(raw, raw, new, 0))
    store.publish(msgspec.structs.replace(made, info=info))


def test_shared_chunks_count_once_and_belong_to_nobody_alone(store):
    publish(store, "s1", "a.ipynb", A, B, created=1)
    publish(store, "s2", "a.ipynb", B, C, C, created=2)
    publish(store, "s3", "b.ipynb", B, D, created=3)
    usage = store.space()
    assert (usage.snapshots, usage.path) == (3, str(store.root))
    assert usage.stored_bytes == usage.unique_bytes == len(A + B + C + D)
    assert usage.raw_bytes == len(A + B + B + C + C + B + D)
    assert usage.disk_bytes > sum(path.stat().st_size for path in pack_files(store))
    assert abs(usage.free_bytes - store.free_bytes()) < 1 << 30
    first, second = usage.by_name
    assert (first.name, first.snapshots, first.stored_bytes) == ("a.ipynb", 2, len(A + B + C))
    assert (first.exclusive_bytes, first.raw_bytes) == (len(A + C), len(A + B + B + C + C))
    assert (second.name, second.stored_bytes, second.exclusive_bytes) == (
        "b.ipynb",
        len(B + D),
        len(D),
    )


def test_a_renamed_notebook_is_one_notebook(store):
    publish(store, "s1", "old.ipynb", A, created=1, kernel_id="earlier")
    publish(store, "s2", "old.ipynb", A, B, created=2, kernel_id="renamed")
    publish(store, "s3", "older.ipynb", C, created=3, kernel_id="other")
    publish(store, "s4", "new.ipynb", A, created=4, kernel_id="renamed")
    publish(store, "s5", "newest.ipynb", A, created=5, kernel_id="renamed")
    # Since then there is another notebook under the former name.
    publish(store, "s6", "old.ipynb", D, created=6, kernel_id="later")
    found = {one.name: (one.snapshots, one.exclusive_bytes) for one in store.space().by_name}
    assert found == {
        "newest.ipynb": (4, len(A + B)),
        "older.ipynb": (1, len(C)),
        "old.ipynb": (1, len(D)),
    }


def test_it_follows_the_snapshots(store):
    assert (store.space().snapshots, store.space().by_name) == (0, [])
    publish(store, "s1", "a.ipynb", A, created=1)
    publish(store, "s2", "b.ipynb", A, B, created=2)
    assert [one.exclusive_bytes for one in store.space().by_name] == [len(B), 0]
    store.mark_deleted("s2", 60)
    usage = store.space()
    assert [(one.name, one.exclusive_bytes) for one in usage.by_name] == [("a.ipynb", len(A))]
    assert usage.stored_bytes == len(A)
    assert usage.disk_bytes > len(A + B)  # it may come back
    store.undelete("s2")
    assert store.space().stored_bytes == len(A + B)


def test_manifests_are_read_once(store, monkeypatch):
    publish(store, "s1", "a.ipynb", A, created=1)
    first = store.space()
    monkeypatch.setattr(manifests, "read", lambda *_: pytest.fail("read again"))
    assert store.space().by_name == first.by_name
