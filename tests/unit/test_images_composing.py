"""Chunks of which few pages changed are composed of what an earlier snapshot stored, and come back to the byte."""

import functools
import gc
import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jupyter_gpuckpt.errors import ObjectCorrupt
from jupyter_gpuckpt.images import composing, worker_processes
from jupyter_gpuckpt.images.chunking import PAGE
from jupyter_gpuckpt.images.composing import Predecessor
from jupyter_gpuckpt.images.pack import BytesSource, FileSource, Source, pack
from jupyter_gpuckpt.images.unpack import FileSink, Unpacking, read_stream
from jupyter_gpuckpt.snapshots.export import export
from jupyter_gpuckpt.snapshots.imports import import_archive
from jupyter_gpuckpt.store import manifests
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.manifest_records import SnapshotInfo
from jupyter_gpuckpt.wire.progress import Progress
from tests.manifests import manifest_of

pytestmark = pytest.mark.thorough

MB = 1 << 20
RNG = np.random.default_rng(5)


@functools.cache  # a worker that runs none of these tests makes none
def random_bytes():
    """Return the same random bytes at each call."""
    return RNG.bytes(24 * MB)


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "store", pack_bytes=8 * MB) as store:
        yield store


@pytest.fixture(params=["threads", "processes"])
def by(request, monkeypatch):
    """Which workers pack."""
    if request.param == "processes":
        monkeypatch.setattr(worker_processes, "_MIN_BYTES", 1)
    yield request.param
    gc.collect()


def scattered(data, share, rng=RNG):
    """Return the bytes with this share of the pages changed, at random places."""
    pages = np.frombuffer(bytearray(data), np.uint8).reshape(-1, PAGE).copy()
    chosen = rng.choice(len(pages), max(1, int(share * len(pages))), replace=False)
    pages[chosen] = np.frombuffer(rng.bytes(len(chosen) * PAGE), np.uint8).reshape(-1, PAGE)
    return pages.tobytes()


def save(store, name, data, predecessor=None, *, path=None, threads=2, chunk_pages=64):
    """Store a snapshot of one stream, and return the result of packing it."""
    if path is not None:
        path.write_bytes(data)
    source: Source = BytesSource("a", data)
    if path is not None:
        source = FileSource("a", path, chunk_pages=chunk_pages)
    before = Predecessor(store.manifest(predecessor).streams) if predecessor else None
    packed = pack([source], store, threads=threads, progress=Progress(), predecessor=before)
    store.publish(manifest_of(SnapshotInfo(name, "k", 1.0, "save"), *packed.streams))
    return packed


def content(store, name, tmp_path):
    """Return the bytes of a stream; check that a resume reads the same as other readers do."""
    [stream] = store.manifest(name).streams
    target = tmp_path / f"out-{name}"
    with target.open("w+b") as file:
        Unpacking([(stream, FileSink(file.fileno()))], store, threads=2).run(Progress())
    assert target.read_bytes() == read_stream(stream, store)
    return target.read_bytes()


def composed(store, name):
    return [c for s in store.manifest(name).streams for c in s.chunks if c.parts]


@pytest.mark.parametrize("chunk_pages", [64, 256])
def test_scattered_changes_take_little_more_than_they_are(store, tmp_path, by, chunk_pages):
    path = tmp_path / "data"
    options = {"path": path, "chunk_pages": chunk_pages}
    first = save(store, "s1", random_bytes(), **options)
    assert len(random_bytes()) / len(first.streams[0].chunks) > chunk_pages * PAGE / 2
    changed = scattered(random_bytes(), 0.01)
    packed = save(store, "s2", changed, "s1", **options)
    assert packed.new_bytes < 0.02 * len(random_bytes())
    assert composed(store, "s2")
    again = save(store, "s3", changed, "s2", **options)
    assert again.new_bytes == 0
    assert again.streams == packed.streams
    for name, expected in (("s1", random_bytes()), ("s2", changed), ("s3", changed)):
        store.verify(name)
        assert content(store, name, tmp_path) == expected


def test_without_an_earlier_snapshot_all_is_as_it_was(store):
    packed = save(store, "s1", random_bytes())
    assert packed.new_bytes == store.needed(packed.streams).stored_bytes
    assert not composed(store, "s1")


def test_what_moved_is_found_where_it_is_now(store, tmp_path):
    save(store, "s1", random_bytes())
    moved = RNG.bytes(3 * PAGE) + scattered(
        random_bytes()[: 9 * MB] + random_bytes()[9 * MB + 7 * PAGE :], 0.01
    )
    assert save(store, "s2", moved, "s1").new_bytes < 0.05 * len(random_bytes())
    assert content(store, "s2", tmp_path) == moved


def test_what_changed_too_much_is_stored_whole(store):
    save(store, "s1", random_bytes())
    packed = save(store, "s2", scattered(random_bytes(), 0.95), "s1")
    assert packed.new_bytes > 0.95 * len(random_bytes())
    assert not composed(store, "s2")


def test_saved_over_and_over_a_resume_reads_twice_its_bytes_at_most(store, tmp_path, monkeypatch):
    monkeypatch.setattr(composing, "_MAX_SOURCES", 3)
    data = random_bytes()[: 4 * MB]
    save(store, "s0", data)
    for number in range(1, 13):
        data = scattered(data, 0.08)
        save(store, f"s{number}", data, f"s{number - 1}")
        for chunk in composed(store, f"s{number}"):
            parts = list(chunk.stored())
            assert sum(part.length for part in parts) == chunk.length
            by_source = dict[bytes, int]()
            for part in parts:
                by_source[part.digest] = by_source.get(part.digest, 0) + part.length
            assert len(by_source) <= 3
            assert max(by_source.values()) >= chunk.length / 2
    assert composed(store, "s12")
    assert content(store, "s12", tmp_path) == data
    store.delete(*(f"s{number}" for number in range(12)))
    assert content(store, "s12", tmp_path) == data
    needed = manifests.references(store.manifest("s12"))
    assert sum(place.raw_length for place in store.locate(needed)) < 2.5 * len(data)


def test_a_base_lives_as_long_as_what_is_composed_of_it(store, tmp_path):
    save(store, "s1", random_bytes())
    changed = scattered(random_bytes(), 0.01)
    save(store, "s2", changed, "s1")
    store.delete("s1")
    store._catalog.database.remake()
    store.sweep()
    store.verify("s2")
    assert content(store, "s2", tmp_path) == changed
    store.delete("s2")
    assert not list((store.root / "packs").iterdir())


def test_a_base_that_is_gone_before_the_save_asks_for_it_is_not_counted_on(store, tmp_path, by):
    save(store, "s1", random_bytes())
    before = Predecessor(store.manifest("s1").streams)
    store.delete("s1")
    path = tmp_path / "data"
    path.write_bytes(changed := scattered(random_bytes(), 0.01))
    packed = pack(
        [FileSource("a", path)], store, threads=2, progress=Progress(), predecessor=before
    )
    store.publish(manifest_of(SnapshotInfo("s2", "k", 1.0, "save"), *packed.streams))
    assert not composed(store, "s2")
    assert content(store, "s2", tmp_path) == changed


def test_a_base_that_was_asked_for_stays_until_the_snapshot_is_published(
    store, tmp_path, monkeypatch
):
    save(store, "s1", random_bytes())
    changed, look_up = scattered(random_bytes(), 0.01), Predecessor.look_up

    def look_up_and_lose(self, *args, **options):
        found = look_up(self, *args, **options)
        monkeypatch.undo()
        store.delete("s1")
        return found

    monkeypatch.setattr(Predecessor, "look_up", look_up_and_lose)
    save(store, "s2", changed, "s1", threads=1)
    assert composed(store, "s2")
    store.sweep()
    assert content(store, "s2", tmp_path) == changed


def test_a_damaged_base_is_not_built_on(store, tmp_path, by):
    save(store, "s1", random_bytes())
    for path in sorted((store.root / "packs").iterdir()):
        damaged = bytearray(path.read_bytes())
        for at in range(1000, len(damaged) - 20_000, 3_000):
            damaged[at] ^= 1
        path.write_bytes(damaged)
    changed = scattered(random_bytes(), 0.2)
    path = tmp_path / "data"
    save(store, "s2", changed, "s1", path=path)
    assert not composed(store, "s2")
    with pytest.raises(ObjectCorrupt):
        store.verify("s1")


def test_what_was_looked_at_and_not_used_is_not_kept(store):
    save(store, "s1", random_bytes())
    save(
        store,
        "s2",
        scattered(random_bytes()[: 12 * MB], 0.01) + scattered(random_bytes()[12 * MB :], 0.9),
        "s1",
    )
    assert composed(store, "s2")
    store.delete("s1", "s2")
    assert not list((store.root / "packs").iterdir())


def test_a_lost_base_is_named(store):
    save(store, "s1", random_bytes())
    save(store, "s2", scattered(random_bytes(), 0.01), "s1")
    chunk = composed(store, "s2")[0]
    base = max(chunk.stored(), key=lambda part: part.length).digest
    [place] = store.locate([base])
    store.path_of(place.pack).unlink()
    root = store.root
    store.close()
    with LocalStore(root) as again, pytest.raises(ObjectCorrupt, match="not in the store"):
        again.verify("s2")


def test_an_archive_holds_bases_and_parts(store, tmp_path):
    save(store, "s1", random_bytes())
    changed = scattered(random_bytes(), 0.01)
    save(store, "s2", changed, "s1")
    with export(store, "s2") as archive:
        data = b"".join(archive.pieces())
    with LocalStore(tmp_path / "other") as other:
        import_archive(other, io.BytesIO(data).read)
        assert composed(other, "s2")
        assert content(other, "s2", tmp_path) == changed


def edits():
    """Draw edits of pages: (first page, number of pages, kind of edit)."""
    what = st.sampled_from(["change", "zero", "insert", "delete", "one byte", "copy"])
    return st.lists(st.tuples(st.integers(0, 999), st.integers(1, 60), what), max_size=12)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(first=edits(), second=edits(), tail=st.integers(0, PAGE - 1), sources=st.integers(2, 8))
def test_whatever_is_done_to_memory_comes_back(
    tmp_path_factory, monkeypatch, first, second, tail, sources
):
    monkeypatch.setattr(composing, "_MAX_SOURCES", sources)
    folder = tmp_path_factory.mktemp("edits")
    with LocalStore(folder / "store") as store:
        data = (
            random_bytes()[: 4 * MB]
            + bytes(10 * PAGE)
            + random_bytes()[: 20 * PAGE]
            + random_bytes()[:tail]
        )
        save(store, "s0", data)
        for number, done in enumerate((first, second), 1):
            data = edited(data, done, number)
            save(store, f"s{number}", data, f"s{number - 1}", threads=1)
            assert content(store, f"s{number}", folder) == data


def edited(data, done, seed):
    rng = np.random.default_rng(seed)
    data = bytearray(data)
    for page, count, what in done:
        at = page * PAGE % max(1, len(data) // PAGE * PAGE)
        size = min(count * PAGE, len(data) - at)
        if what == "change":
            data[at : at + size] = rng.bytes(size)
        elif what == "zero":
            data[at : at + size] = bytes(size)
        elif what == "insert":
            data[at:at] = rng.bytes(size)
        elif what == "delete":
            del data[at : at + size]
        elif what == "one byte" and size:
            data[at + size // 2] ^= 1
        elif what == "copy":
            data[at : at + size] = data[:size]
    return bytes(data)


def test_what_is_all_new_is_compared_now_and_then_only(store, monkeypatch):
    compared, compare = [], composing.Composer._compare

    def counted(self, *args):
        compared.append(args)
        return compare(self, *args)

    save(store, "s1", random_bytes())
    monkeypatch.setattr(composing.Composer, "_compare", counted)
    packed = save(store, "s2", RNG.bytes(len(random_bytes())), "s1", threads=1)
    assert 0 < len(compared) < len(packed.streams[0].chunks) / 2
