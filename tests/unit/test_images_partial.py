"""A stream of which only what changed is read consists of the former chunks and new ones, and comes back to the byte."""

from __future__ import annotations

import gc
from itertools import pairwise

import numpy as np
import pytest

from jupyter_gpuckpt.images import partial, worker_processes
from jupyter_gpuckpt.images.composing import Predecessor
from jupyter_gpuckpt.images.pack import BytesSource, pack
from jupyter_gpuckpt.images.partial import Layout, PartialFileSource, usable
from jupyter_gpuckpt.images.unpack import read_stream
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.manifests import stored_digests
from jupyter_gpuckpt.wire.progress import Progress

pytestmark = pytest.mark.thorough

MB = 1 << 20
PIECE = 64 << 10
PIECES = 24 * MB // PIECE
RNG = np.random.default_rng(7)


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "store", pack_bytes=8 * MB) as store:
        yield store


@pytest.fixture(params=["threads", "processes"])
def by(request, monkeypatch):
    """Which workers pack."""
    if request.param == "processes":
        monkeypatch.setattr(worker_processes, "_MIN_BYTES", 1)
        monkeypatch.setattr(worker_processes, "_MIN_PROCESSES", 1)
    yield request.param
    gc.collect()


@pytest.fixture
def before() -> np.ndarray:
    """Return a row for each piece of memory: random bytes, and zeros in a fifth of it."""
    pieces = RNG.integers(0, 256, (PIECES, PIECE), np.uint8)
    pieces[100:170] = 0
    pieces[300] = 0
    pieces[301, : PIECE // 2] = 0
    return pieces


def packed_whole(store, pieces):
    return pack([BytesSource("a", pieces.tobytes())], store, threads=2, progress=Progress())


def origin_of(before, after):
    """Return where each piece was, in the same place or 2 MB earlier or later."""
    found = np.full(len(after), -1)
    for shift in (-32, 32, 0):
        for number in range(max(0, -shift), min(len(after), len(before) - shift)):
            if np.array_equal(after[number], before[number + shift]):
                found[number] = number + shift
    return found


def layout_of(store, stream):
    return Layout(stream, store.missing(stored_digests(stream.chunks)))


def packed_partly(store, stream, before, after, tmp_path, *, is_whole=False):
    """Store `after` with what of `stream`, which has `before`, can be used; return the result and how much was read."""
    found = usable(layout_of(store, stream), origin_of(before, after), PIECE)
    assert found is not None
    data, path = after.tobytes(), tmp_path / "file"
    path.write_bytes(data if is_whole else b"".join(data[b:e] for b, e in found.ranges))
    progress = Progress()
    source = PartialFileSource(
        "a",
        path,
        length=len(data),
        ranges=found.ranges,
        kept=found.kept,
        is_whole=is_whole,
    )
    with progress.stage("store", len(data)):
        packed = pack(
            [source], store, threads=2, progress=progress, predecessor=Predecessor([stream])
        )
        assert progress.record().done_bytes == len(data)
    assert read_stream(packed.streams[0], store) == data
    assert packed.raw_bytes == len(data)
    return packed, sum(end - begin for begin, end in found.ranges)


def test_nothing_is_read_and_stored_of_what_is_unchanged(store, before, by, tmp_path):
    first = packed_whole(store, before)
    second, read = packed_partly(store, first.streams[0], before, before, tmp_path)
    assert (read, second.new_bytes, second.streams) == (0, 0, first.streams)


@pytest.mark.parametrize("is_whole", [False, True], ids=["ranges", "whole file"])
def test_what_changed_is_read_up_to_the_borders_of_chunks(store, before, by, tmp_path, is_whole):
    first = packed_whole(store, before)
    after = before.copy()
    changed = [0, 57, 99, 130, 131, 169, 200, 201, 202, 300, 301, PIECES - 1]
    for number in changed:
        after[number] = RNG.integers(0, 256, PIECE, np.uint8)
    after[250] = 0
    second, read = packed_partly(
        store, first.streams[0], before, after, tmp_path, is_whole=is_whole
    )
    assert read < 6 * MB
    # A chunk of which less than half is unchanged is stored whole.
    assert second.new_bytes < 3 * len(changed) * PIECE
    third, read = packed_partly(store, second.streams[0], after, after, tmp_path)
    assert (read, third.new_bytes) == (0, 0)


def test_memory_that_has_moved_is_found_again(store, before, by, tmp_path):
    first = packed_whole(store, before)
    after = np.concatenate([before[:64], before[96:], np.zeros_like(before[:32])])
    second, read = packed_partly(store, first.streams[0], before, after, tmp_path)
    assert read < 5 * MB
    assert second.new_bytes < MB


def test_memory_that_grew_is_read_at_its_end(store, before, tmp_path):
    first = packed_whole(store, before)
    after = np.concatenate([before, RNG.integers(0, 256, (8, PIECE), np.uint8)])
    second, read = packed_partly(store, first.streams[0], before, after, tmp_path)
    assert 8 * PIECE <= read < 8 * PIECE + 3 * MB
    assert second.new_bytes < 9 * PIECE


def test_random_changes_come_back_to_the_byte(store, before, tmp_path):
    stream, former = packed_whole(store, before).streams[0], before
    for _ in range(12):
        after = former.copy()
        for number in RNG.integers(0, PIECES, RNG.integers(1, 30)):
            kind = RNG.integers(0, 4)
            if kind == 0:
                after[number] = 0
            elif kind == 1:
                after[number, RNG.integers(0, PIECE)] ^= 1
            else:
                after[number] = RNG.integers(0, 256, PIECE, np.uint8)
        packed, _ = packed_partly(store, stream, former, after, tmp_path)
        stream, former = packed.streams[0], after


def test_chunks_that_are_not_stored_any_more_are_read(store, before):
    [stream] = packed_whole(store, before).streams
    gone = [chunk for chunk in stream.chunks if chunk.digest][3:5]
    found = usable(Layout(stream, {chunk.digest for chunk in gone}), np.arange(PIECES), PIECE)
    assert sum(end - begin for begin, end in found.ranges) == sum(one.length for one in gone)
    borders = [
        (one.start, one.start + sum(chunk.length for chunk in one.chunks)) for one in found.kept
    ]
    spans = sorted([*borders, *found.ranges])
    assert spans[0][0] == 0
    assert spans[-1][1] == stream.length
    assert all(a[1] == b[0] for a, b in pairwise(spans))


def test_a_stream_of_which_much_changed_is_read_as_a_whole(store, before):
    [stream] = packed_whole(store, before).streams
    origin = np.arange(PIECES)
    origin[: PIECES * 2 // 3] = -1
    assert usable(layout_of(store, stream), origin, PIECE) is None
    assert usable(layout_of(store, stream), np.full(PIECES, -1), PIECE) is None


def test_one_with_many_holes_is_read_as_a_whole(store, before, monkeypatch):
    [stream] = packed_whole(store, before).streams
    monkeypatch.setattr(partial, "_MAX_RANGES", 3)
    origin = np.arange(PIECES)
    origin[::50] = -1
    assert usable(layout_of(store, stream), origin, PIECE) is None
