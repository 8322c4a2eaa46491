"""The catalog can be lost, damaged or old: the packs are the truth."""

import errno
import os
import shutil
import sqlite3
import threading
import time
from contextlib import closing
from itertools import groupby

import pytest

from jupyter_gpuckpt.errors import ObjectCorrupt, StoreFull, StoreUnavailable
from jupyter_gpuckpt.store.codecs import RAW, digest_of
from jupyter_gpuckpt.store.index import catalog, database, rows
from jupyter_gpuckpt.store.index.database import Database
from jupyter_gpuckpt.store.index.needs import Newest
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.packs import Entry
from jupyter_gpuckpt.store.writer import Record
from tests.conftest import wait_for
from tests.manifests import manifest

CHUNKS = [os.urandom(3000 + number) for number in range(700)]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Return a folder with a store of several packs, closed, and with its catalog at an earlier moment."""
    folder = tmp_path_factory.mktemp("template")
    root = folder / "store"
    with LocalStore(root, pack_bytes=500_000) as store:
        put(store, CHUNKS[:400])
        shutil.copy(root / "catalog.sqlite", folder / "old.sqlite")
        put(store, CHUNKS[400:])
        assert len(list((root / "packs").iterdir())) >= 4
    return folder


@pytest.fixture
def root(template, tmp_path):
    """Return a copy of that store, beside the old catalog."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return tmp_path / "store"


def put(store, chunks):
    with store.writer() as writer:
        for chunk in chunks:
            writer.append_all([Record(digest_of(chunk), chunk, len(chunk), RAW)])


def check(root, *, forgotten=0):
    with LocalStore(root) as store:
        for chunk in CHUNKS:
            assert store.load(digest_of(chunk)) == chunk
        with store.writer() as writer:
            known = writer.known([digest_of(chunk) for chunk in CHUNKS])
        assert len(known) >= len(CHUNKS) - forgotten


def test_a_closed_catalog_is_one_file(root):
    assert sorted(path.name for path in root.iterdir()) == [
        "catalog.sqlite",
        "lock",
        "manifests",
        "packs",
    ]


def test_a_deleted_catalog_is_made_again(root):
    (root / "catalog.sqlite").unlink()
    check(root)
    check(root)


@pytest.mark.parametrize("content", [b"", b"no database at all" * 1000, bytes(8192)])
def test_a_replaced_catalog_is_made_again(root, content):
    (root / "catalog.sqlite").write_bytes(content)
    check(root)


@pytest.mark.parametrize("place", [0, 20, 100, 4096, 0.3, 0.5, 0.8])
@pytest.mark.parametrize("count", [1, 100, 5000])
def test_an_altered_catalog_is_made_again(root, place, count):
    path = root / "catalog.sqlite"
    data = bytearray(path.read_bytes())
    start = int(place * len(data)) if isinstance(place, float) else place
    for offset in range(start, min(start + count, len(data))):
        data[offset] ^= 0xFF
    path.write_bytes(data)
    # A row that says by mistake that its chunk is damaged costs a second copy, no more.
    check(root, forgotten=count)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_truncated_catalog_is_made_again(root, part):
    path = root / "catalog.sqlite"
    os.truncate(path, int(path.stat().st_size * part))
    check(root)


def test_a_catalog_that_is_older_than_the_packs_learns_the_rest(root, tmp_path):
    shutil.copy(tmp_path / "old.sqlite", root / "catalog.sqlite")
    check(root)


def test_a_catalog_of_another_schema_is_made_again(root):
    connection = sqlite3.connect(root / "catalog.sqlite")
    connection.execute("PRAGMA user_version = 99")
    connection.execute("DROP TABLE chunks")
    connection.commit()
    connection.close()
    check(root)


def test_a_catalog_that_is_damaged_while_in_use_is_made_again(root):
    with LocalStore(root) as store:
        path = root / "catalog.sqlite"
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(os.urandom(size - 4096))
        for chunk in CHUNKS:
            assert store.load(digest_of(chunk)) == chunk


@pytest.mark.parametrize("column", ["packs SET name", "snapshots SET identity"])
def test_a_catalog_whose_text_is_none_is_made_again(root, column):
    with LocalStore(root) as store:
        store.publish(manifest("s1", CHUNKS[0]))
    with closing(sqlite3.connect(root / "catalog.sqlite")) as connection, connection:
        name = column.split()[-1]
        connection.execute(f"UPDATE {column} = CAST(x'ff' || substr({name}, 2) AS TEXT)")
    with LocalStore(root) as store:
        assert [name for name, _ in store._records.all()] == ["s1"]
    check(root)


@pytest.mark.parametrize("step", ["_open", "_replace", "_remade"])
def test_a_catalog_that_could_not_be_made_again_is_the_next_time(root, monkeypatch, step):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with LocalStore(root) as store:
        with monkeypatch.context() as patched:
            patched.setattr(store._catalog.database, step, fail)
            for _ in range(2):
                with pytest.raises(StoreFull):
                    store.locate([os.urandom(32)])
        assert store.load(digest_of(CHUNKS[0])) == CHUNKS[0]
    check(root)


def test_a_catalog_that_is_damaged_as_soon_as_it_is_made_is_refused(root, monkeypatch):
    def fail(*arguments):
        raise database.broken("still")

    with LocalStore(root) as store:
        monkeypatch.setattr(rows, "packs_after", fail)
        with pytest.raises(StoreUnavailable, match="a new one is damaged too"):
            store.sweep()
        monkeypatch.undo()
        assert store.load(digest_of(CHUNKS[0])) == CHUNKS[0]


def test_rows_that_are_missing_are_found_in_the_packs(root):
    connection = sqlite3.connect(root / "catalog.sqlite")
    connection.execute("DELETE FROM chunks WHERE raw_length % 2")
    connection.commit()
    connection.close()
    with LocalStore(root) as store:
        for chunk in CHUNKS:
            assert store.load(digest_of(chunk)) == chunk


def test_a_pack_that_is_gone_is_forgotten(root):
    gone = min((root / "packs").iterdir())
    gone.unlink()
    with LocalStore(root) as store, store.writer() as writer:
        missing = [c for c in CHUNKS if not writer.known([digest_of(c)])]
        assert 0 < len(missing) < len(CHUNKS)
        with pytest.raises(ObjectCorrupt):
            store.load(digest_of(missing[0]))


def test_a_pack_whose_index_is_damaged_gives_what_can_be_verified(root, caplog):
    path = min((root / "packs").iterdir())
    os.truncate(path, path.stat().st_size - 1)
    check(root)
    assert path.name in caplog.text


def test_a_pack_of_a_newer_format_is_left_alone(root, caplog):
    path = min((root / "packs").iterdir())
    data = bytearray(path.read_bytes())
    data[8] = 9
    path.write_bytes(data)
    (root / "catalog.sqlite").unlink()
    with LocalStore(root) as store:
        assert "version 9" in caplog.text
        store.sweep()
        assert path.exists()


def test_a_page_fault_does_not_wait_for_a_long_look_up(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "BATCH", 1)
    with closing(catalog.Catalog(tmp_path / "catalog.sqlite", tmp_path)) as opened:
        entries = [Entry(digest_of(bytes([n])), n, 10, 20, 0) for n in range(50)]
        opened.add_pack("a", 10_000, entries)
        digests = sorted(entry.digest for entry in entries)
        asked, answers, select = [], [], rows.select
        fault = threading.Thread(target=lambda: answers.extend(opened.locate([digests[7]])))

        def with_a_fault_in_between(query, batch, connection):
            asked.extend(batch)
            if len(asked) == 3:
                fault.start()
                wait_for(opened.database._queue.locked)
            return select(query, batch, connection)

        monkeypatch.setattr(rows, "select", with_a_fault_in_between)
        assert opened.locate(digests).digests == [entry.digest for entry in entries]
        fault.join()
        assert [place.digest for place in answers] == [digests[7]]
        assert asked == [*digests[:3], digests[7], *digests[3:]]


def test_places_come_as_they_lie_on_the_disk_from_whichever_pack(tmp_path):
    with closing(catalog.Catalog(tmp_path / "catalog.sqlite", tmp_path)) as opened:
        every = [
            (name, Entry(digest_of(f"{name}{n}".encode()), 1000 - n, 10 + n, 20 + n, n % 5))
            for name in ("b", "a", "c")
            for n in range(400)
        ]
        for name in ("b", "a", "c"):
            opened.add_pack(name, 10_000, [entry for pack, entry in every if pack == name])
        assert opened.condemn("a", Newest(0, 0))
        opened.remove(["a"])
        opened.add_pack("d", 10_000, [Entry(digest_of(b"new"), 2, 3, 4, 1)])
        left = [(pack, *entry) for pack, entry in every if pack != "a"]
        left.append(("d", digest_of(b"new"), 2, 3, 4, 1))
        found = list(opened.locate({digest_of(b"absent"), *(entry[1] for entry in left)}))
        assert {(p.pack, p.digest, p.offset, *p[3:]) for p in found} == set(left)
        packs = {name: list(places) for name, places in groupby(found, lambda place: place.pack)}
        assert [place for places in packs.values() for place in places] == found
        for places in packs.values():
            assert places == sorted(places, key=lambda place: place.offset)
        assert not list(opened.locate([]))


def test_turns_have_fewer_rows_where_a_row_takes_long(tmp_path):
    sizes = []

    def work(rows, connection):
        sizes.append(len(rows))
        time.sleep(len(rows) / 1000)

    database = Database(tmp_path / "catalog.sqlite", lambda connection: None)
    database.change(range(500), work)
    assert sum(sizes) == 500
    assert sizes[:4] == [200, 100, 50, 25]
    assert max(sizes[4:]) <= 25
    pages = database.run(lambda c: c.execute("PRAGMA wal_autocheckpoint").fetchone())
    assert pages == (31,)
    database.close()
