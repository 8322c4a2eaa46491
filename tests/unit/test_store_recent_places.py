"""Places that were looked up a moment ago are those that the catalog has, whatever happens to the chunks meanwhile."""

from __future__ import annotations

import random

import pytest

from jupyter_gpuckpt.store.codecs import RAW, digest_of
from jupyter_gpuckpt.store.index import places
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.writer import Record
from jupyter_gpuckpt.wire.manifest_records import Chunk, SnapshotInfo, Stream
from tests.manifests import manifest_of

RANDOM = random.Random(3)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(places, "_FEW", 2)


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "store", pack_bytes=2000) as store:
        yield store


def stored(store, name, numbers):
    """Publish a snapshot of chunks with these numbers; return their digests."""
    contents = [b"%06d" % number for number in numbers]
    digests = [digest_of(content) for content in contents]
    with store.writer() as writer:
        writer.append_all([Record(*both, 6, RAW) for both in zip(digests, contents, strict=True)])
        writer.finish()
    chunks = [Chunk(digest, 6) for digest in digests]
    stream = Stream("a", 6 * len(chunks), chunks)
    store.publish(manifest_of(SnapshotInfo(name, "k", 1.0, "save"), stream))
    return set(digests)


def rows(places):
    return {place.digest: place for place in places}


def check(store, digests):
    """Compare with the catalog; what is asked for need not exist."""
    for keep in (False, True, True):
        found = store._catalog.recent.locate(digests, keep=keep)
        expected = store._catalog.locate(digests)
        assert rows(found) == rows(expected)
        assert len(found) == len(rows(found))
    lengths = {place.digest: place.stored_length for place in expected.undamaged()}
    assert store._catalog.recent.known(digests).items() <= lengths.items()
    assert store._catalog.known(digests) == lengths
    assert store.missing(set(digests)) == set(digests) - lengths.keys()


def test_they_are_those_of_the_catalog(store):
    one, two = stored(store, "s1", range(300)), stored(store, "s2", range(200, 500))
    absent = {digest_of(b"nothing"), digest_of(b"nothing else")}
    for digests in (one, one, two, one | two, one & two, absent, one | absent, two - one):
        check(store, digests)
    everything = sorted(one | two | absent)
    for _ in range(30):
        check(store, RANDOM.sample(everything, RANDOM.randrange(len(everything))))


def test_removed_moved_and_damaged_chunks_are_not_where_they_were(store):
    one = stored(store, "s1", range(300))
    two = stored(store, "s2", range(150, 400))
    check(store, one | two)
    damaged = next(iter(two))
    store._catalog.mark_damaged(damaged)
    check(store, one | two)
    assert damaged not in store.find(one | two).digests
    # It is stored anew, which is no move.
    number = next(n for n in range(150, 400) if digest_of(b"%06d" % n) == damaged)
    stored(store, "s3", [number, 1000])
    check(store, one | two)
    assert damaged in store.find(one | two).digests
    store.delete("s1")
    store.collect()
    check(store, one | two)
    assert not (one - two) <= set(store.find(one | two).digests)


def test_a_snapshot_that_shares_its_chunks_with_the_last_one_is_recorded_with_all_it_needs(store):
    stored(store, "s1", range(300))
    two = stored(store, "s2", range(1, 310))
    store.delete("s1")
    store.collect()
    assert set(store.find(two).digests) == two
    store.verify("s2")


def test_parts_of_what_was_looked_up_stay_remembered(store, monkeypatch):
    more, everything = stored(store, "s1", range(300, 320)), stored(store, "s2", range(300))
    recent = store._catalog.recent
    recent.locate(everything, keep=True)
    part = set(sorted(everything)[:200])
    recent.locate(part, keep=True)
    recent.locate(part | more, keep=True)
    asked = []
    locate = store._catalog.locate
    monkeypatch.setattr(store._catalog, "locate", lambda d: asked.append(set(d)) or locate(d))
    assert rows(recent.locate(everything | more)) == rows(locate(everything | more))
    assert recent.has_all(everything | more)
    assert asked == [set()]


def test_what_is_remembered_does_not_grow_for_ever(store):
    recent = store._catalog.recent
    for begin in range(0, 1000, 100):
        few = stored(store, f"s{begin}", range(begin, begin + 100))
        recent.locate(few, keep=True)
        assert recent.has_all(few)
        assert len(recent._last.rows) <= 200
