"""What is read in which order: everything once, in spans, each taken by one."""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from jupyter_gpuckpt.errors import ManifestInvalid, ObjectCorrupt
from jupyter_gpuckpt.images import reading_order
from jupyter_gpuckpt.images.reading_order import table_of
from jupyter_gpuckpt.images.spans import RECORD, SPAN, TARGET, SpanTable, shared_table, taken
from jupyter_gpuckpt.images.written import places_of
from jupyter_gpuckpt.store.codecs import RAW, digest_of
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.packs import RECORD_BYTES
from jupyter_gpuckpt.store.writer import Record
from jupyter_gpuckpt.wire.chunk_parts import Part, encoded_parts
from jupyter_gpuckpt.wire.manifest_records import Chunk, Stream

KB, MB = 1 << 10, 1 << 20
RNG = np.random.default_rng(23)


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "store", pack_bytes=2 * MB) as store:
        yield store


def put(store, lengths):
    """So many chunks of these lengths, stored in this order."""
    chunks = []
    with store.writer() as writer:
        for length in lengths:
            data = RNG.bytes(length)
            chunks.append(Chunk(digest_of(data), length))
            writer.append_all([Record(chunks[-1].digest, data, length, RAW)])
        writer.finish()
    return chunks


def stream(name, chunks):
    return Stream(name, sum(chunk.length for chunk in chunks), chunks)


def by_span(table):
    """(pack, start, end, digests, targets of each) of every span."""
    for _, pack, start, end, record, records, target, targets in table.spans.tolist():
        rows = table.records[record : record + records]
        places = table.targets[target : target + targets].tolist()
        assert rows["targets"].sum() == targets
        digests, goes, first = [], [], 0
        for row in rows:
            assert start <= row["offset"]
            assert row["offset"] + row["stored_length"] <= end
            digests.append(bytes(row["digest"]))
            goes.append(places[first : first + int(row["targets"])])
            first += int(row["targets"])
        yield table.packs[pack], start, end, digests, goes


def test_every_chunk_goes_to_all_its_places_once(store):
    some = put(store, RNG.integers(4, 400, 60) * KB)
    zeros = Chunk(b"", 3 * MB)
    streams = [
        stream("a", [*some[:30], zeros, *some[20:]]),
        stream("b", []),
        stream("c", [zeros, *reversed(some)]),
    ]
    expected = Counter()
    for number, each in enumerate(streams):
        offset = 0
        for chunk in each.chunks:
            if chunk.digest:
                expected[chunk.digest, number, offset, 0, chunk.length] += 1
            offset += chunk.length
    table = table_of(streams, store, span_bytes=MB, threads=3)
    found = Counter(
        (digest, *place)
        for *_, digests, goes in by_span(table)
        for digest, places in zip(digests, goes, strict=True)
        for place in places
    )
    assert found == expected
    assert reading_order.zeros_in(streams) == 2 * zeros.length


def test_runs_are_neighbours_and_become_shorter_towards_the_end(store):
    chunks = put(store, [64 * KB] * 128)
    table = table_of([stream("a", chunks)], store, span_bytes=MB, threads=2)
    spans = list(by_span(table))
    lengths = [end - start for _, start, end, _, _ in spans]
    assert max(lengths) <= MB
    assert max(lengths) > MB - 2 * 64 * KB
    packs = [span[0] for span in spans]
    assert packs == sorted(packs, key=packs.index)
    assert len(set(packs)) > 1
    assert max(lengths[-3:]) <= reading_order._MIN_SPAN_BYTES


def test_a_chunk_longer_than_a_run_is_a_run(store):
    chunks = put(store, [MB, MB])
    table = table_of([stream("a", chunks)], store, span_bytes=256 * KB, threads=1)
    assert [span[2] - span[1] for span in by_span(table)] == [MB, MB]


def test_what_lies_between_is_read_only_where_it_is_little(store):
    chunks = put(store, [8 * KB, 8 * KB, 8 * KB, 512 * KB, 8 * KB])
    table = table_of(
        [stream("a", [chunks[0], chunks[2], chunks[4]])], store, span_bytes=4 * MB, threads=1
    )
    assert [len(span[3]) for span in by_span(table)] == [2, 1]
    start, end = next(iter(by_span(table)))[1:3]
    assert end - start == 3 * 8 * KB + 2 * RECORD_BYTES


def test_a_chunk_that_goes_to_many_places_is_for_several(store):
    once, often, after = put(store, [16 * KB] * 3)
    table = table_of(
        [stream("a", [once, *[often] * 40, after])], store, span_bytes=4 * MB, threads=1
    )
    counts = [[len(places) for places in span[4]] for span in by_span(table)]
    assert counts == [[1, 14], [14], [12], [1]]
    assert {digest for span in by_span(table) for digest in span[3]} == {
        once.digest,
        often.digest,
        after.digest,
    }


@pytest.mark.parametrize("other", [4 * KB, 12 * KB])
def test_a_manifest_that_is_wrong_about_a_length_is_refused(store, other):
    [chunk] = put(store, [8 * KB])
    wrong = stream("a", [Chunk(chunk.digest, other)])
    with pytest.raises(ManifestInvalid, match=rf"has {other} bytes; it has {8 * KB}"):
        table_of([stream("b", [chunk]), wrong], store, span_bytes=MB, threads=1)
    with pytest.raises(ManifestInvalid, match="the snapshot's manifest says 9999"):
        table_of([Stream("a", 9999, [chunk])], store, span_bytes=MB, threads=1)


def test_a_chunk_that_is_not_there_is_named(store):
    chunks = put(store, [8 * KB])
    gone = Chunk(digest_of(b"gone"), 4)
    with pytest.raises(ObjectCorrupt, match=gone.digest.hex()[:16]):
        table_of([stream("a", [*chunks, gone])], store, span_bytes=MB, threads=1)


def test_processes_take_every_run_once_and_see_the_same_table(store):
    chunks = put(store, [16 * KB] * 150)
    table = table_of([stream("a", chunks)], store, span_bytes=64 * KB, threads=4)
    # Many more, to take at the same time.
    spans = np.concatenate([table.spans] * 200)
    spans["number"] = np.arange(len(spans))
    records, heap = SpanTable(table.packs, spans, table.records, table.targets).share()
    pipes = []
    wait, go = os.pipe()
    for _ in range(4):
        ours, theirs = os.pipe()
        if os.fork() == 0:
            try:
                os.close(go)
                own = taken(heap)
                os.write(theirs, next(own)[0].to_bytes(4, "little"))
                os.read(wait, 1)
                for span in own:
                    os.write(theirs, span[0].to_bytes(4, "little"))
            finally:
                os._exit(0)
        os.close(theirs)
        pipes.append(ours)
    shares = [os.read(ours, 4) for ours in pipes]
    os.close(go)
    os.close(wait)
    with ThreadPoolExecutor() as readers:
        shares += readers.map(_rest, pipes)
    found = [np.frombuffer(share, "<u4") for share in shares]
    assert sorted(np.concatenate(found)) == list(range(len(spans)))
    again = shared_table(table.packs, len(table.records), records)
    assert again.records.tobytes() == table.records.tobytes()
    assert again.targets.tobytes() == table.targets.tobytes()
    os.close(records)
    os.close(heap)


def _rest(descriptor):
    with open(descriptor, "rb") as file:
        return file.read()


def test_a_table_of_nothing_can_be_shared():
    nothing = SpanTable([], np.empty(0, SPAN), np.empty(0, RECORD), np.empty(0, TARGET))
    records, heap = nothing.share()
    assert not list(taken(heap))
    assert not len(shared_table([], 0, records).records)
    os.close(records)
    os.close(heap)


def covered(table):
    """Where the targets of each span begin and end at most, by looking at each."""
    found = []
    for span in table.spans.tolist():
        places = table.targets[span[6] : span[6] + span[7]].tolist()
        assert places, "a span without targets"
        found.append((min(at for _, at, _, _ in places), max(at + n for _, at, _, n in places)))
    return found


@pytest.mark.parametrize("by_stream", [False, True])
@pytest.mark.parametrize("is_last", [False, True])
def test_each_run_of_a_chunk_that_goes_to_many_places_has_some_of_them(store, is_last, by_stream):
    """So many whole copies, and a composed chunk with two parts of it, do not divide evenly among the spans."""
    chunks = put(store, [8 * KB, 16 * KB, 8 * KB])
    often = chunks.pop(2 if is_last else 0)
    half = often.length // 2
    parts = encoded_parts([Part(often.digest, 0, 100), Part(often.digest, half, half)])
    composed = Chunk(digest_of(b"composed"), half + 100, parts)
    for whole in (287, 288, 600, 1100):
        order = [chunks[1], *[often] * whole, composed, chunks[0]]
        table = table_of([stream("a", order)], store, span_bytes=MB, threads=2, by_stream=by_stream)
        first, last = places_of(table, np.zeros(1, np.int64))
        assert list(zip(first.tolist(), last.tolist(), strict=True)) == covered(table)
        assert table.spans["targets"].sum() == len(table.targets) == whole + 4
        if by_stream:
            assert first.tolist() == sorted(first.tolist())
