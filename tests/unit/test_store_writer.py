"""Writing from many threads, packs that roll over, writers that are given up."""

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from jupyter_gpuckpt.errors import StoreFull
from jupyter_gpuckpt.store.codecs import RAW, digest_of
from jupyter_gpuckpt.store.index.catalog import Catalog
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.packs import read_index
from jupyter_gpuckpt.store.writer import Record

CHUNKS = [os.urandom(5000) for _ in range(400)]
RECORDS = [Record(digest_of(chunk), chunk, len(chunk), RAW) for chunk in CHUNKS]


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "store", pack_bytes=200_000) as store:
        yield store


def packs(store):
    return sorted((store.root / "packs").iterdir())


def give_up(store, records):
    with suppress(ZeroDivisionError), store.writer() as writer:
        writer.append_all(records)
        raise ZeroDivisionError


def test_packs_roll_over(store):
    with store.writer() as writer:
        for record in RECORDS:
            assert writer.append_all([Record(*record)]) == 5000
    found = packs(store)
    assert len(found) >= 10
    assert all(path.suffix == ".pack" and not path.name.startswith("tmp-") for path in found)
    assert all(path.stat().st_size < 220_000 for path in found)
    assert sum(len(read_index(path)) for path in found) == len(RECORDS)
    for chunk in CHUNKS:
        assert store.load(digest_of(chunk)) == chunk


def test_a_chunk_that_many_threads_bring_at_once_is_stored_once(store):
    start = threading.Barrier(8)

    def bring(_: int) -> int:
        start.wait()
        return sum(writer.append_all([Record(*record)]) for record in RECORDS[:50])

    with store.writer() as writer, ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(bring, range(8))) == 50 * 5000
    assert sum(len(read_index(path)) for path in packs(store)) == 50


def test_a_chunk_that_is_twice_in_one_call_is_stored_once(store):
    with store.writer() as writer:
        assert writer.append_all([*RECORDS[:5], *RECORDS[:3]]) == 5 * 5000
        assert writer.append_all(RECORDS[:5]) == 0
        assert writer.append_all([]) == 0
    assert sum(len(read_index(path)) for path in packs(store)) == 5


def test_chunks_of_full_packs_are_known_to_others_at_the_end_at_the_latest(store):
    with store.writer() as first, store.writer() as second:
        first.append_all(RECORDS)
        first.finish()
        assert len(second.known([record.digest for record in RECORDS])) == len(RECORDS)
        assert second.append_all(RECORDS) == 0


def test_a_writer_that_wrote_nothing_leaves_nothing(store):
    with store.writer() as writer:
        assert not writer.known([bytes(32)])
    assert packs(store) == []


def test_what_was_written_before_an_error_is_kept_for_the_next_try(store):
    give_up(store, RECORDS[:10])
    assert not [path for path in packs(store) if path.name.startswith("tmp-")]
    with store.writer() as writer:
        assert len(writer.known([record.digest for record in RECORDS])) == 10
    for chunk in CHUNKS[:10]:
        assert store.load(digest_of(chunk)) == chunk


def test_what_nobody_came_back_for_is_swept(store):
    give_up(store, RECORDS)
    store.sweep()
    assert packs(store) == []


def test_packs_being_written_are_never_swept(store):
    with store.writer() as writer:
        for record in RECORDS:
            writer.append_all([Record(*record)])
            store.sweep()
    for chunk in CHUNKS:
        assert store.load(digest_of(chunk)) == chunk


def test_a_disk_that_is_full_while_a_pack_is_registered(tmp_path):
    chunks = [number.to_bytes(4, "big") * 25 for number in range(3000)]
    digests = {digest_of(chunk) for chunk in chunks}
    with LocalStore(tmp_path / "store") as store:
        connection = store._catalog.database._connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 40}")
        records = [Record(digest_of(chunk), chunk, len(chunk), RAW) for chunk in chunks]
        with pytest.raises(StoreFull), store.writer() as writer:
            writer.append_all(records)
        # All that it took is given back, and nobody is told that it is there.
        assert packs(store) == []
        connection.execute("PRAGMA max_page_count = 1000000")
        with store.writer() as writer:
            assert writer.known(digests) == {}
            writer.append_all(records)
        assert len(store.locate(digests)) == len(digests)
        assert all(map(store.load, digests))


def test_what_another_was_told_of_stays_when_the_registration_fails(store, monkeypatch):
    finish = Catalog.finish
    told = {}

    def fail(self, name, length, old=(), identity=None):
        told.update(other.known([digest_of(chunk) for chunk in CHUNKS]))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with store.writer() as other:
        monkeypatch.setattr(Catalog, "finish", fail)
        with pytest.raises(StoreFull), store.writer() as writer:
            writer.append_all(RECORDS[:10])
        monkeypatch.setattr(Catalog, "finish", finish)
    assert len(told) == 10
    store.sweep()
    assert all(map(store.load, told))
    # Nobody counts on it any more when the pin is over.
    store._in_use.published(told.keys() | set())
    assert store.sweep() > 0
    assert packs(store) == []
