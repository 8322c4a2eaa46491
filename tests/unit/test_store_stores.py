"""Stores side by side in one data directory: which one a daemon opens, and what it brings from the others."""

from __future__ import annotations

import threading

import pytest

from jupyter_gpuckpt.errors import SnapshotNotFound
from jupyter_gpuckpt.store import bringing, stores
from jupyter_gpuckpt.store.local import LocalStore
from tests.manifests import manifest
from tests.unit.test_store_local import put

CHUNK = b"a chunk" * 1000


def alone():
    return False


def test_a_store_whose_process_is_just_ending_is_waited_for(tmp_path, monkeypatch):
    waits = threading.Event()
    ending = LocalStore(tmp_path / "store")

    class Clock:
        monotonic = staticmethod(lambda: 0.0)

        @staticmethod
        def sleep(seconds):
            waits.set()

    monkeypatch.setattr(stores, "time", Clock)
    opened = []
    thread = threading.Thread(
        target=lambda: opened.append(stores.open_free(tmp_path / "store", alone))
    )
    thread.start()
    assert waits.wait(120)
    ending.close()
    thread.join()
    assert opened[0].root == tmp_path / "store"
    opened[0].close()


def test_a_store_that_stays_in_use_is_not_waited_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "_ENDING_SECONDS", 0.0)
    with LocalStore(tmp_path / "store"), stores.open_free(tmp_path / "store", alone) as other:
        assert other.root == tmp_path / "store-2"
        assert stores.others(tmp_path / "store", other) == [tmp_path / "store"]


@pytest.mark.parametrize("is_open", [True, False])
def test_a_snapshot_is_brought_from_a_store_beside_even_while_that_is_open(tmp_path, is_open):
    first = LocalStore(tmp_path / "store")
    put(first, CHUNK)
    first.publish(manifest("s1", CHUNK))
    if not is_open:
        first.close()
    with LocalStore(tmp_path / "store-2") as second:
        others = stores.others(tmp_path / "store", second)
        with pytest.raises(SnapshotNotFound):
            bringing.bring_from(second, others, "s2")
        assert bringing.bring_from(second, others, "s1").info.snapshot_id == "s1"
        first.close()
        assert [
            len(second.load(chunk.digest)) for chunk in second.manifest("s1").streams[0].chunks
        ] == [len(CHUNK)]
