"""The catalog can be lost, damaged or old: the packs are the truth."""

import os
import shutil
import sqlite3

import pytest

from jupyter_gpuckpt.errors import ObjectCorrupt
from jupyter_gpuckpt.store.codecs import RAW, digest_of
from jupyter_gpuckpt.store.local import LocalStore

CHUNKS = [os.urandom(3000 + number) for number in range(700)]


@pytest.fixture
def root(tmp_path):
    """A store of several packs, closed."""
    root = tmp_path / "store"
    with LocalStore(root, pack_bytes=500_000) as store:
        put(store, CHUNKS[:400])
        shutil.copy(root / "catalog.sqlite", tmp_path / "old.sqlite")
        put(store, CHUNKS[400:])
        assert len(list((root / "packs").iterdir())) >= 4
    return root


def put(store, chunks):
    with store.writer() as writer:
        for chunk in chunks:
            writer.append(digest_of(chunk), chunk, len(chunk), RAW)


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
        missing = [c for c in CHUNKS if not writer.has(digest_of(c))]
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
