"""Composition of chunks of which few pages changed, from parts of stored chunks and a chunk of the changed pages.

Covers: the choice of the chunks to compare with, comparing, making the parts. Does not cover: storing the pages that changed (pack.py,
images/pack_worker.py), reading parts (reading_order.py).

One changed page changes a whole chunk, 70 pages on average: of 2 GB in which one page in a hundred changed, two thirds would be
stored again. Chunks are compared byte by byte, with stored chunks whose digests were verified.
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

from ..store import packs
from ..store.codecs import DIGEST_BYTES, CodecError, Decompressor, digest_of
from ..store.local import LocalStore
from ..store.manifests import stored_digests
from ..wire.chunk_parts import Part, encoded_parts, part_digests
from ..wire.manifest_records import Chunk, Stream
from .chunking import MAX_PAGES, PAGE

#: The limit of the cache of decompressed source chunks: room for two of the largest.
_KEPT_BYTES = 2 * MAX_PAGES * PAGE
#: The additional memory of a thread that composes: that cache, a chunk that is read and decompressed, and the changed pages.
COMPOSING_BYTES = _KEPT_BYTES + 3 * MAX_PAGES * PAGE

#: Shorter chunks are stored whole: a record on disk and in the catalog would cost too much of the gain.
_MIN_CHUNK_BYTES = 8 * PAGE
#: The least share of a composed chunk that must come from one stored chunk. It bounds what a resume reads to twice the chunk, and
#: lets stored chunks of which snapshots need little become unused in time.
_MIN_SHARED_PART = 0.5
#: The limit of source chunks of a composed chunk. Beyond it, only the source of most pages is used, and all other pages are stored.
_MAX_SOURCES = 8

#: After so many failed comparisons in a row, only every `_PATIENCE`-th chunk is compared until one can be composed again, so that
#: newly computed data does not take twice the time.
_PATIENCE = 4

_PART = np.dtype([("digest", f"V{DIGEST_BYTES}"), ("start", "<u4"), ("length", "<u4")])
_NOTHING = bytes(DIGEST_BYTES)


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The place of a stored chunk: its pack, and the range of its bytes there."""

    path: str
    offset: int
    stored_length: int
    raw_length: int
    codec: int


class Offer(msgspec.Struct, frozen=True):
    """The stored chunks from which the unknown chunks of a segment may be composed.

    `alike`: for each unknown chunk, by its digest, the contents that an earlier snapshot had in its place, encoded as parts
    (`Chunk.parts`), the likeliest first.
    """

    alike: dict[bytes, list[bytes]]
    places: dict[bytes, Place]


class Composed(NamedTuple):
    """The parts of a composed chunk, and its bytes that no stored chunk has yet, with their digest."""

    parts: bytes
    fresh: memoryview
    digest: bytes


class Composer:
    """A composer of chunks for one thread: it compares them with stored ones and makes the parts."""

    def __init__(self) -> None:
        self._decompressor = Decompressor()
        #: The sources that were read last, because neighbors often share one. An empty array: the source is damaged.
        self._kept: OrderedDict[bytes, NDArray[np.uint8]] = OrderedDict()
        self._in_vain = 0

    def compose(self, chunk: memoryview, digest: bytes, offer: Offer) -> Composed | None:
        """Return the parts of the chunk; None if it should be stored whole."""
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
        # For every page: the number of the source that has it (-1: none has), and the offset there.
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
        if counts[most] * PAGE < _MIN_SHARED_PART * len(chunk):
            return None
        if np.count_nonzero(counts) >= _MAX_SOURCES:
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
            # The digest below reveals a short read.
            packs.read_span(Path(place.path), place.offset, payload)
            data = self._decompressor.unpack(place.codec, payload, place.raw_length, target)
        except (OSError, CodecError):
            data = memoryview(b"")
        return np.frombuffer(data if digest_of(data) == digest else b"", np.uint8)


def _composed(
    chunk: memoryview, source: NDArray[np.int64], start: NDArray[np.int64], digests: list[bytes]
) -> Composed:
    """Return a chunk whose pages come from the places in `source` and `start`, or from new bytes where the source is -1."""
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

    `composed`: chunks that were composed before, by digest. `offer`: the stored chunks of which the others may be composed.
    """

    composed: dict[bytes, Chunk]
    offer: Offer


class Predecessor:
    """The earlier snapshot of the kernel that is saved now; thread-safe.

    Its chunks may be gone from the store. While `look_up` is used, the caller must protect those that exist from removal, until the
    writer has pins in use on the chunks that it found.
    """

    def __init__(self, streams: Iterable[Stream] = (), snapshot_id: str = "") -> None:
        self.snapshot_id = snapshot_id
        self._streams = {stream.name: stream for stream in streams}
        self._layouts = dict[str, _Layout]()
        chunks = [chunk for stream in self._streams.values() for chunk in stream.chunks]
        #: The digests of the stored chunks that it needs.
        self.digests = stored_digests(chunks)
        self._lock = threading.Lock()
        # Composed chunks by digest, including those composed for the new snapshot.
        self._composed = {chunk.digest: chunk for chunk in chunks if chunk.parts}

    def stream(self, name: str) -> Stream | None:
        """Return one of its streams."""
        return self._streams.get(name)

    def remember(self, composed: Mapping[bytes, Chunk]) -> None:
        """Remember chunks that were composed now, so that other segments can refer to them; their parts are in the store."""
        with self._lock:
            self._composed.update(composed)

    def _layout(self, name: str) -> _Layout | None:
        if name not in self._layouts and name in self._streams:
            self._layouts[name] = _Layout(self._streams[name])
        return self._layouts.get(name)

    def look_up(
        self,
        name: str,
        start: int,
        chunks: Sequence[Chunk],
        unknown: Collection[bytes],
        *,
        store: LocalStore,
    ) -> Earlier:
        """Look up the `unknown` ones of these chunks, which follow each other from `start` of the stream `name`."""
        with self._lock:
            before = {d: self._composed[d] for d in unknown if d in self._composed}
            layout = self._layout(name)
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
            # A chunk that occurs several times gives no hint of its neighbors.
            begins[chunk.digest] = -1 if chunk.digest in begins else end - chunk.length
        self._begins = {digest: begin for digest, begin in begins.items() if begin >= 0 and digest}

    def alike(
        self, start: int, chunks: Sequence[Chunk], unknown: Collection[bytes]
    ) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield for unknown chunks the former content at their place, located by the unchanged chunks around them."""
        offsets = list(accumulate((chunk.length for chunk in chunks), initial=start))
        before = list(self._shifts(zip(offsets, chunks, strict=False)))
        after = list(self._shifts(reversed(list(zip(offsets, chunks, strict=False)))))[::-1]
        wanted = set(unknown)
        for chunk, offset, shifts in zip(
            chunks, offsets, zip(before, after, strict=True), strict=False
        ):
            if chunk.digest not in wanted or chunk.length < _MIN_CHUNK_BYTES:
                continue
            wanted.remove(chunk.digest)
            places = dict.fromkeys(shift for shift in shifts if shift is not None) or {0: None}
            found = [self._parts(offset + shift, chunk.length) for shift in places]
            if any(found):
                yield chunk.digest, [parts for parts in found if parts]

    def _shifts(self, chunks: Iterable[tuple[int, Chunk]]) -> Iterator[int | None]:
        """Yield for each chunk the shift (former minus present offset) of the last unchanged chunk so far; None before the first."""
        shift: int | None = None
        for offset, chunk in chunks:
            begin = self._begins.get(chunk.digest)
            if begin is not None:
                shift = begin - offset
            yield shift

    def _parts(self, offset: int, length: int) -> bytes:
        """Return these bytes of the stream as parts; bytes before its beginning and zeros have no digest."""
        # The offset is negative where bytes were inserted at the beginning of the stream.
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
