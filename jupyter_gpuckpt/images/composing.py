"""Composition of chunks of which few pages changed: from parts of stored chunks, and the pages that changed.

Covers: choosing what a chunk is compared with, comparing, making the parts. Does not cover: storing the pages that changed (pack.py,
workers/pack_worker.py), reading parts (reading_order.py).

A page that changed makes another chunk of the 70 that a chunk has on average: of 2 GB in which one page in a hundred changed,
two thirds would be stored again. The comparison is of bytes, and what they are compared with is verified first.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..model import Chunk, Part, Stream, encoded_parts, part_digests
from ..store import packs
from ..store.codecs import DIGEST_BYTES, CodecError, Decompressor, digest_of
from ..store.local import LocalStore
from .chunking import MAX_PAGES, PAGE

#: Chunks that are kept to compare with, the largest and another one.
_KEPT_BYTES = 2 * MAX_PAGES * PAGE
#: What a thread that composes needs besides: those, one that is read and decompressed, and the pages that changed.
COMPOSING_BYTES = _KEPT_BYTES + 3 * MAX_PAGES * PAGE

#: Shorter chunks are stored whole: what a record takes on the disk and in the catalog is too much of what is gained.
_LEAST_BYTES = 8 * PAGE
#: At least so much of a composed chunk comes from one stored chunk, so that a resume reads twice of it at most, and a stored chunk
#: of which snapshots need little goes some day.
_LEAST_SHARE = 0.5
#: Stored chunks that a composed one has parts of, at most. Beyond, all but those of the largest are stored anew, together.
_MOST_SOURCES = 8

#: After so many chunks in a row that were better stored whole, only one in so many is compared, until one can be composed again:
#: what was computed anew should not take twice the time.
_PATIENCE = 4

_PART = np.dtype([("digest", f"V{DIGEST_BYTES}"), ("start", "<u4"), ("length", "<u4")])
_NOTHING = bytes(DIGEST_BYTES)


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The place of a stored chunk: its pack, and its bytes there."""

    path: str
    offset: int
    stored_length: int
    raw_length: int
    codec: int


class Offer(msgspec.Struct, frozen=True):
    """The stored chunks from which the unknown chunks of a segment may be composed.

    `alike`: by the digest of an unknown chunk, what an earlier snapshot had in its place, as parts (`Chunk.parts`), the likeliest
    first.
    """

    alike: dict[bytes, list[bytes]]
    places: dict[bytes, Place]


class Composed(NamedTuple):
    """The parts of a composed chunk, and the bytes among them that no stored chunk has yet (`digest`: of those bytes)."""

    parts: bytes
    fresh: memoryview
    digest: bytes


class Composer:
    """A composer of chunks for one thread: it compares them with stored ones and makes the parts."""

    def __init__(self) -> None:
        self._decompressor = Decompressor()
        #: The sources that were read last: neighbours often share one. Empty: it is not what it should be.
        self._kept: OrderedDict[bytes, NDArray[np.uint8]] = OrderedDict()
        self._in_vain = 0

    def compose(self, chunk: memoryview, digest: bytes, offer: Offer) -> Composed | None:
        """Return the parts of the chunk; None where it is better stored whole."""
        alike = offer.alike.get(digest, ())
        if not alike:
            return None
        self._in_vain += 1
        if self._in_vain <= _PATIENCE or not self._in_vain % _PATIENCE:
            for parts in alike:
                found = self._compare(chunk, parts, offer.places)
                if found is not None:
                    self._in_vain = 0
                    return found
        return None

    def _compare(
        self, chunk: memoryview, parts: bytes, places: Mapping[bytes, Place]
    ) -> Composed | None:
        pages = len(chunk) // PAGE
        mine = np.frombuffer(chunk, np.uint64, pages * PAGE // 8).reshape(pages, -1)
        digests = dict[bytes, int]()
        # For every page the source that has it, and where there; -1 for one that none has.
        source, start = np.full(pages, -1, np.int64), np.zeros(pages, np.int64)
        at = 0
        for part in Chunk(b"", 0, parts).stored():
            first, at = at // PAGE, at + part.length
            theirs = self._pages(part, places)[: pages - first]
            same = np.flatnonzero((mine[first : first + len(theirs)] == theirs).all(axis=1))
            source[first + same] = digests.setdefault(part.digest, len(digests))
            start[first + same] = part.start + same * PAGE
        counts = np.bincount(source[source >= 0], minlength=1)
        most = counts.argmax()
        if counts[most] * PAGE < _LEAST_SHARE * len(chunk):
            return None
        if np.count_nonzero(counts) >= _MOST_SOURCES:
            source[source != most] = -1
        return _composed(chunk, source, start, list(digests))

    def _pages(self, part: Part, places: Mapping[bytes, Place]) -> NDArray[np.uint64]:
        """Return the whole pages of a part; none where its source cannot be read."""
        found = places.get(part.digest)
        if found is None:
            return np.empty((0, PAGE // 8), np.uint64)
        if part.digest not in self._kept:
            self._kept[part.digest] = self._read(part.digest, found)
            while len(self._kept) > 1 and sum(map(len, self._kept.values())) > _KEPT_BYTES:
                self._kept.popitem(last=False)
        data = self._kept[part.digest]
        count = part.length // PAGE
        if part.start + count * PAGE > len(data):
            return np.empty((0, PAGE // 8), np.uint64)
        return data[part.start :][: count * PAGE].view(np.uint64).reshape(count, PAGE // 8)

    def _read(self, digest: bytes, place: Place) -> NDArray[np.uint8]:
        payload = memoryview(bytearray(place.stored_length))
        target = memoryview(bytearray(place.raw_length))
        try:
            # What is not read entirely is found out by the digest.
            packs.read_run(Path(place.path), place.offset, payload)
            data = self._decompressor.unpack(place.codec, payload, place.raw_length, target)
        except (OSError, CodecError):
            data = memoryview(b"")
        return np.frombuffer(data if digest_of(data) == digest else b"", np.uint8)


def _composed(
    chunk: memoryview, source: NDArray[np.int64], start: NDArray[np.int64], digests: list[bytes]
) -> Composed:
    """Return a chunk whose pages come from where `source` and `start` say, and from new bytes where the source is -1."""
    data = np.frombuffer(chunk, np.uint8)
    pages, rest = divmod(len(data), PAGE)
    new = source < 0
    fresh = np.concatenate(
        [data[: pages * PAGE].reshape(pages, PAGE)[new].ravel(), data[pages * PAGE :]]
    )
    source, start = source.copy(), start.copy()
    source[new], start[new] = len(digests), np.arange(np.count_nonzero(new)) * PAGE
    if rest:
        source = np.append(source, len(digests))
        start = np.append(start, np.count_nonzero(new) * PAGE)
    digest = digest_of(memoryview(fresh.data)) if len(fresh) else b""
    names = np.frombuffer(b"".join([*digests, digest or _NOTHING]), f"V{DIGEST_BYTES}")
    begins = np.append(True, (np.diff(source) != 0) | (np.diff(start) != PAGE))
    first = np.flatnonzero(begins)
    rows = np.empty(len(first), _PART)
    rows["digest"], rows["start"] = names[source[first]], start[first]
    rows["length"] = np.diff(np.append(first * PAGE, len(data)))
    return Composed(rows.tobytes(), memoryview(fresh.data), digest)


class Earlier(NamedTuple):
    """The result of a look-up in an earlier snapshot, for chunks that are not stored.

    `composed`: those that were composed before, by their digests. `offer`: what the others may be composed of.
    """

    composed: dict[bytes, Chunk]
    offer: Offer


class Predecessor:
    """An earlier snapshot of what is saved now; thread-safe.

    Its chunks need not be in the store any more. Those that are must be held while `look_up` is used and until what it found has
    a lease of the writer's.
    """

    def __init__(self, streams: Iterable[Stream] = ()) -> None:
        self._layouts = {stream.name: _Layout(stream) for stream in streams}
        chunks = [chunk for layout in self._layouts.values() for chunk in layout.chunks]
        #: Of the stored chunks that it needs.
        self.digests = {part.digest for chunk in chunks for part in chunk.stored()}
        self._lock = threading.Lock()
        # By digest; those that were composed for the new snapshot as well.
        self._composed = {chunk.digest: chunk for chunk in chunks if chunk.parts}

    def remember(self, composed: Mapping[bytes, Chunk]) -> None:
        """Remember chunks that were composed now, so that other segments can refer to them; their parts are in the store."""
        with self._lock:
            self._composed.update(composed)

    def look_up(
        self,
        name: str,
        start: int,
        chunks: Sequence[Chunk],
        unknown: Collection[bytes],
        *,
        store: LocalStore,
    ) -> Earlier:
        """Return what there is for the `unknown` of these chunks, which follow each other from `start` of a stream."""
        with self._lock:
            before = {d: self._composed[d] for d in unknown if d in self._composed}
        layout = self._layouts.get(name)
        alike = dict[bytes, list[bytes]]()
        if layout is not None:
            alike.update(layout.alike(start, chunks, set(unknown).difference(before)))
        parts = [chunk.parts for chunk in before.values()]
        parts += [one for candidates in alike.values() for one in candidates]
        if not parts:
            return Earlier({}, Offer({}, {}))
        found = store.find(set().union(*map(part_digests, parts)) - {_NOTHING})
        places = {
            place.digest: Place(str(store.path_of(place.pack)), place.offset, *place[3:])
            for place in found
        }
        composed = {
            d: before[d] for d in before if set(part_digests(before[d].parts)) <= places.keys()
        }
        return Earlier(composed, Offer(alike, places))


class _Layout:
    """The layout of a stream: the chunks, and the offsets at which they begin and end."""

    def __init__(self, stream: Stream) -> None:
        self.chunks = stream.chunks
        self._ends = list(accumulate(chunk.length for chunk in stream.chunks))
        begins = dict[bytes, int]()
        for chunk, end in zip(stream.chunks, self._ends, strict=True):
            # What is there several times says nothing of what lies around it.
            begins[chunk.digest] = -1 if chunk.digest in begins else end - chunk.length
        self._begins = {digest: begin for digest, begin in begins.items() if begin >= 0 and digest}

    def alike(
        self, start: int, chunks: Sequence[Chunk], unknown: Collection[bytes]
    ) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield what was where the unknown chunks are now, seen from the chunks around them that are the same."""
        offsets = list(accumulate((chunk.length for chunk in chunks), initial=start))
        before = list(self._shifts(zip(offsets, chunks, strict=False)))
        after = list(self._shifts(reversed(list(zip(offsets, chunks, strict=False)))))[::-1]
        wanted = set(unknown)
        for chunk, offset, shifts in zip(
            chunks, offsets, zip(before, after, strict=True), strict=False
        ):
            if chunk.digest not in wanted or chunk.length < _LEAST_BYTES:
                continue
            wanted.remove(chunk.digest)
            places = dict.fromkeys(shift for shift in shifts if shift is not None) or {0: None}
            found = [self._parts(offset + shift, chunk.length) for shift in places]
            if any(found):
                yield chunk.digest, [parts for parts in found if parts]

    def _shifts(self, chunks: Iterable[tuple[int, Chunk]]) -> Iterator[int | None]:
        """Yield for each chunk how much further on the nearest before it that is the same was; None where there is none."""
        shift: int | None = None
        for offset, chunk in chunks:
            begin = self._begins.get(chunk.digest)
            if begin is not None:
                shift = begin - offset
            yield shift

    def _parts(self, offset: int, length: int) -> bytes:
        """Return what these bytes of the stream consist of, as parts; what lies before it or in zeros has no digest."""
        # A shift leads before the beginning where something was put in there.
        found = [Part(_NOTHING, 0, min(-offset, length))] if offset < 0 else []
        end = min(offset + length, self._ends[-1] if self._ends else 0)
        offset = max(offset, 0)
        at = bisect_right(self._ends, offset)
        while offset < end:
            chunk = self.chunks[at]
            skip, at = offset - (self._ends[at] - chunk.length), at + 1
            for part in chunk.stored() if chunk.digest else (Part(_NOTHING, 0, chunk.length),):
                inside = min(part.length - skip, end - offset)
                if inside > 0:
                    found.append(Part(part.digest, part.start + skip, inside))
                    offset += inside
                skip = max(0, skip - part.length)
        return encoded_parts(found)
