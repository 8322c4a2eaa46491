"""Packing and unpacking: the same bytes come back, and nothing is stored twice."""

import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from jupyter_gpuckpt.errors import CheckpointError, OperationCancelled
from jupyter_gpuckpt.images.chunking import PAGE
from jupyter_gpuckpt.images.pack import BytesSource, FileSource, pack
from jupyter_gpuckpt.images.unpack import read_stream
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.progress import Progress

MB = 1 << 20


@functools.cache  # a worker that runs none of these tests makes none
def random_bytes():
    """Return the same random bytes at each call."""
    return np.random.default_rng(7).bytes(40 * MB)


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "store", pack_bytes=8 * MB) as store:
        yield store


def packed(store, *contents: bytes, threads: int = 3):
    sources = [BytesSource(f"s{number}", data) for number, data in enumerate(contents)]
    return pack(sources, store, threads=threads, progress=Progress())


@pytest.mark.parametrize("threads", [1, 2, 5, 16])
def test_all_kinds_of_streams_come_back(store, threads):
    contents = [
        b"",
        b"x",
        bytes(5),
        random_bytes()[: PAGE - 1],
        random_bytes()[: PAGE + 1],
        bytes(3 * MB),
        bytes(3 * MB) + b"\1",
        random_bytes()[: 5 * MB] + bytes(2 * MB) + random_bytes()[5 * MB : 9 * MB + 123],
        (random_bytes()[:PAGE] + bytes(PAGE)) * 1000,
        b"abc" * 2 * MB,
        random_bytes(),
    ]
    result = packed(store, *contents, threads=threads)
    assert [stream.name for stream in result.streams] == [f"s{i}" for i in range(len(contents))]
    assert [stream.length for stream in result.streams] == [len(data) for data in contents]
    assert result.raw_bytes == sum(map(len, contents))
    assert 40 * MB < result.new_bytes < 42 * MB
    # The bytes of random_bytes() are three times among the sources, cut alike but at the ends of the copies.
    assert store.needed(result.streams).stored_bytes == result.new_bytes
    for stream, data in zip(result.streams, contents, strict=True):
        assert read_stream(stream, store) == data
        kinds = [bool(chunk.digest) for chunk in stream.chunks]
        assert all(first or second for first, second in pairwise(kinds))


@pytest.mark.parametrize("kind", ["numbers", "random", "zeros"])
def test_a_second_save_of_the_same_adds_nothing(store, kind):
    rng = np.random.default_rng(3)
    data = {
        "numbers": rng.normal(size=5 * MB).astype(np.float32).tobytes(),
        "random": random_bytes(),
        "zeros": bytes(30 * MB),
    }[kind]
    first = packed(store, data)
    second = packed(store, data, threads=7)
    assert second.new_bytes <= (0 if kind == "zeros" else len(data) / 100)
    assert second.raw_bytes == first.raw_bytes == len(data)
    stored = [store.needed(one.streams).stored_bytes for one in (first, second)]
    assert abs(stored[1] - stored[0]) <= stored[0] / 50
    assert read_stream(second.streams[0], store) == data


def test_zeros_are_not_stored(store):
    result = packed(store, bytes(50 * MB), bytes(7))
    assert store.needed(result.streams).stored_bytes == result.new_bytes == 0
    assert [[tuple(c) for c in map(chunk_fields, s.chunks)] for s in result.streams] == [
        [(b"", 50 * MB)],
        [(b"", 7)],
    ]
    assert not list((store.root / "packs").iterdir())


def chunk_fields(chunk):
    return chunk.digest, chunk.length


@pytest.mark.parametrize("pages", [1, 3, 100])
@pytest.mark.parametrize("place", [0, 5000, pytest.param(1, marks=pytest.mark.slow), 10239])
def test_inserted_pages_cost_little_more_than_themselves(store, place, pages):
    packed(store, random_bytes())
    inserted = os.urandom(pages * PAGE)
    changed = random_bytes()[: place * PAGE] + inserted + random_bytes()[place * PAGE :]
    result = packed(store, changed)
    # A chunk at the insertion, and where a border of two threads' parts found no boundary by content.
    assert result.new_bytes < len(inserted) + 2 * MB
    assert read_stream(result.streams[0], store) == changed


def test_pages_changed_in_place_cost_their_chunks(store):
    packed(store, random_bytes())
    changed = random_bytes()[: 10 * MB] + os.urandom(4 * MB) + random_bytes()[14 * MB :]
    assert packed(store, changed).new_bytes < 1.2 * 4 * MB + 2 * MB


def test_equal_parts_of_one_save_are_stored_once(store):
    result = packed(store, random_bytes()[: 8 * MB] * 4, random_bytes()[: 8 * MB])
    assert result.new_bytes < 10 * MB
    assert store.needed(result.streams).stored_bytes == result.new_bytes


def test_two_saves_at_once(store):
    contents = [
        random_bytes()[: 20 * MB],
        random_bytes()[10 * MB : 30 * MB],
        random_bytes()[: 20 * MB],
    ]
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda data: packed(store, data), contents))
    for result, data in zip(results, contents, strict=True):
        assert read_stream(result.streams[0], store) == data
    assert packed(store, *contents).new_bytes < MB


def test_a_file_comes_back(store, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(random_bytes()[: 9 * MB + 17])
    result = pack([FileSource("f", path)], store, threads=2, progress=Progress())
    path.unlink()
    assert read_stream(result.streams[0], store) == random_bytes()[: 9 * MB + 17]


def test_a_file_that_became_shorter_is_said(store, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(random_bytes()[: 9 * MB])
    source = FileSource("the file", path)
    os.truncate(path, 5 * MB)
    with pytest.raises(CheckpointError, match="the file changed"):
        pack([source], store, threads=2, progress=Progress())


class Restless(BytesSource):
    """Other bytes at every reading."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = os.urandom(len(buffer))


def test_a_source_that_changes_while_it_is_read_is_said(store):
    with pytest.raises(CheckpointError, match="memory changed"):
        pack([Restless("memory", bytes(30 * MB))], store, threads=2, progress=Progress())


class Failing(BytesSource):
    """Cannot be read in the middle."""

    def __init__(self, name: str, data: bytes) -> None:
        super().__init__(name, data)
        self.reads = 0
        self._count = threading.Lock()

    def read_into(self, offset: int, buffer: memoryview) -> None:
        with self._count:
            self.reads += 1
        if offset >= 4 * MB:
            raise ZeroDivisionError
        super().read_into(offset, buffer)


def test_the_first_error_stops_all_threads(store):
    source = Failing("f", random_bytes())
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        pack([source], store, threads=4, progress=Progress())
    assert threading.active_count() == before
    assert source.reads < 20
    assert not [p for p in (store.root / "packs").iterdir() if p.name.startswith("tmp-")]


def test_a_cancelled_save_stops_and_leaves_its_chunks_for_the_next(store):
    progress = Progress()

    class Cancelling(BytesSource):
        def read_into(self, offset: int, buffer: memoryview) -> None:
            if offset >= 16 * MB:
                progress.cancel()
            super().read_into(offset, buffer)

    with pytest.raises(OperationCancelled):
        pack([Cancelling("c", random_bytes())], store, threads=2, progress=progress)
    assert not [p for p in (store.root / "packs").iterdir() if p.name.startswith("tmp-")]
    assert packed(store, random_bytes()).new_bytes < 30 * MB


def test_progress_ends_at_the_sources_bytes(store):
    progress = Progress()
    with progress.stage("store"):
        pack(
            [BytesSource("a", random_bytes()), BytesSource("b", bytes(100))],
            store,
            threads=3,
            progress=progress,
        )
        assert progress.record().done_bytes == len(random_bytes()) + 100
