"""The reading order of streams: the place of every chunk, the targets of its bytes, and the spans of chunks that are read together.

All tables are numpy columns, for speed: a resume computes them beside CRIU and should end before CRIU does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ManifestInvalid
from ..store.index.places import Places
from ..store.manifests import digests_of
from ..store.read_only import ReadableStore
from ..wire.manifest_records import Stream
from .spans import RECORD, SPAN, TARGET, SpanTable
from .written import bounds_of, places_of

# Records with at most this many bytes between them are read together.
_SPAN_GAP = 256 << 10
# Towards the end of the packs spans become shorter, down to this length, so that threads end at about the same time: a span has at most
# one `_PART`-th of the remaining bytes per thread. In the order of the streams they may be anywhere.
_MIN_SPAN_BYTES = 256 << 10
_PART = 4
# The number of places to which one thread writes a chunk that occurs many times.
_SHARED = 16

_Rows = NDArray[Any]


def zeros_in(streams: Sequence[Stream]) -> int:
    """Return how many bytes of the streams are zeros, which are not stored."""
    return sum(chunk.length for stream in streams for chunk in stream.chunks if not chunk.digest)


def table_of(
    streams: Sequence[Stream],
    store: ReadableStore,
    *,
    span_bytes: int,
    threads: int,
    by_stream: bool = False,
) -> SpanTable:
    """Return the table of all spans to read for `streams`: of up to `span_bytes` or one chunk each, balanced for `threads`.

    The sink number of a target is the index of its stream. The spans are in the order of the packs; `by_stream`: in the order in which
    the streams have them, which lets the streams be used from their beginnings on.

    Raises ObjectCorrupt naming a chunk that is not in the store, and ManifestInvalid.
    """
    # All chunks are looked up at once, before threads begin: beside them, every row would wait for the GIL.
    places = store.locate(digests_of(streams))
    targets, counts = _targets(streams, places)
    written = np.add.reduceat(targets["length"], np.cumsum(counts) - counts, dtype=np.int64)
    records = np.empty(len(places), RECORD)
    for name in ("offset", "digest", "stored_length", "raw_length", "codec"):
        records[name] = places.rows[name]
    records["targets"] = counts
    pack, alone = places.rows["pack"], np.zeros(len(records), np.bool_)
    copies = -(-written // np.maximum(records["raw_length"].astype(np.int64), 1))
    if len(counts) and copies.max() > _SHARED:
        records, pack, alone = _split(records, pack, -(-copies // _SHARED))
    numbers, pack = np.unique(pack, return_inverse=True)
    spans = _spans(records, pack, alone, span_bytes, threads)
    paths = [str(store.path_of(places.packs[number])) for number in numbers.tolist()]
    table = SpanTable(paths, spans, records, targets)
    if by_stream:
        first, _ = places_of(table, bounds_of(one.length for one in streams))
        table = table._replace(spans=spans[np.argsort(first, kind="stable")])
    table.spans["number"] = np.arange(len(table.spans))
    return table


def _targets(streams: Sequence[Stream], places: Places) -> tuple[_Rows, _Rows]:
    """Return the targets of the chunks, in the order of their places, and how many targets each chunk has."""
    row_of = dict(zip(places.digests, range(len(places)), strict=True))
    row_of[b""] = -1
    rows, targets = [], []
    for number, stream in enumerate(streams):
        digests, starts, lengths = _parts(stream)
        ends = np.cumsum(lengths)
        check_length(stream, int(ends[-1]) if len(ends) else 0)
        row = np.fromiter(map(row_of.__getitem__, digests), np.int64, len(digests))
        stored = row >= 0
        row = row[stored]
        found = np.empty(len(row), TARGET)
        found["sink"] = number
        found["offset"] = (ends - lengths)[stored]
        found["start"], found["length"] = np.maximum(starts, 0)[stored], lengths[stored]
        _check_chunks(lengths[stored], starts[stored], row, places)
        rows.append(row)
        targets.append(found)
    row = np.concatenate(rows) if rows else np.empty(0, np.int64)
    target = np.concatenate(targets) if targets else np.empty(0, TARGET)
    return target[np.argsort(row, kind="stable")], np.bincount(row, minlength=len(places))


def _parts(stream: Stream) -> tuple[list[bytes], NDArray[np.int64], NDArray[np.uint64]]:
    """Return digest, start and length of each part of the stream; the start is -1 for a whole chunk and for zeros."""
    digests, starts, lengths = list[bytes](), list[int](), list[int]()
    for chunk in stream.chunks:
        if not chunk.parts:
            digests.append(chunk.digest)
            starts.append(-1)
            lengths.append(chunk.length)
            continue
        for digest, start, length in chunk.stored():
            digests.append(digest)
            starts.append(start)
            lengths.append(length)
    return digests, np.array(starts, np.int64), np.array(lengths, np.uint64)


def _check_chunks(lengths: _Rows, starts: _Rows, row: _Rows, places: Places) -> None:
    """Raise ManifestInvalid if a chunk is not as long as the manifest says, or ends before one of its parts.

    `starts` is -1 for a whole chunk.
    """
    raw, ends = places.rows["raw_length"][row], starts + lengths.astype(np.int64)
    wrong = np.flatnonzero(np.where(starts < 0, raw != lengths, ends > raw))
    if len(wrong):
        place = places.rows[row[wrong[0]]]
        raise ManifestInvalid(
            f"The snapshot's manifest says that chunk {bytes(place['digest']).hex()[:16]} has "
            f"{max(starts[wrong[0]], 0) + lengths[wrong[0]]} bytes; it has {place['raw_length']}."
        )


def _split(records: _Rows, pack: _Rows, parts: _Rows) -> tuple[_Rows, _Rows, _Rows]:
    """Split records with many targets into `parts` records each, so that several threads share the writing.

    Each new record decompresses the chunk again. The last array of the result marks records that must be spans of their own.
    """
    counts = records["targets"].astype(np.int64)
    parts = np.maximum(1, parts)
    origin = np.repeat(np.arange(len(records)), parts)
    part = np.arange(len(origin)) - np.repeat(np.cumsum(parts) - parts, parts)
    records = records[origin]
    share = -(-counts // parts)[origin]
    records["targets"] = np.clip(counts[origin] - part * share, 0, share)
    # Where the targets do not divide evenly, nothing is left for the last parts.
    some = records["targets"] > 0
    return records[some], pack[origin][some], (part > 0)[some]


def _spans(records: _Rows, pack: _Rows, alone: _Rows, span_bytes: int, threads: int) -> _Rows:
    starts = records["offset"].astype(np.int64)
    lengths = records["stored_length"].astype(np.int64)
    ends = starts + lengths
    apart = (starts[1:] - ends[:-1] > _SPAN_GAP) | (pack[1:] != pack[:-1]) | alone[1:] | alone[:-1]
    borders = [*(np.flatnonzero(apart) + 1).tolist(), len(records)] if len(records) else []
    firsts: list[int] = []
    first, start_of, end_of = 0, starts.tolist(), ends.tolist()
    left = (lengths[::-1].cumsum()[::-1] // (threads * _PART)).tolist()
    for border in borders:
        while first < border:
            firsts.append(first)
            most = min(span_bytes, max(left[first], _MIN_SPAN_BYTES))
            first = max(first + 1, bisect_right(end_of, start_of[first] + most, first, border))
    spans = np.empty(len(firsts), SPAN)
    begin = np.array(firsts, np.int64)
    behind = np.append(begin[1:], len(records)) if firsts else begin
    target = np.append(0, np.cumsum(records["targets"], dtype=np.int64))
    spans["pack"], spans["start"], spans["end"] = pack[begin], starts[begin], ends[behind - 1]
    spans["record"], spans["records"] = begin, behind - begin
    spans["target"], spans["targets"] = target[begin], target[behind] - target[begin]
    return spans


def check_length(stream: Stream, length: int) -> None:
    """Raise ManifestInvalid if the chunks of `stream` do not add up to `length` bytes."""
    if length != stream.length:
        raise ManifestInvalid(
            f"The chunks of {stream.name} have {length} bytes, the snapshot's manifest says {stream.length}."
        )
