"""Segments: parts of sources, each of which is packed by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from ..store.codecs import digest_of
from ..wire.manifest_records import Chunk
from .chunking import CHUNK_PAGES, PAGE, cut, first_begin, is_zero

_MAX_SEGMENT = 16 << 20
MIN_SEGMENT = 2 << 20
# Segments per thread: several, so that all threads are busy to the end.
_SHARE = 4
#: How far beyond a segment's nominal end a content-defined boundary is searched, and the step. Of chunks of the usual length 1 of 3,000
#: searches finds none, of four times that 1 of 7. Then the segment ends at its nominal end, which shifts with inserted bytes.
LOOK_AHEAD = 2 << 20
_LOOK_STEP = 1 << 18


class Source(Protocol):
    """A sequence of bytes to be stored as the stream `name`. It must not change while it is packed."""

    @property
    def name(self) -> str:
        """The name of the stream."""

    @property
    def length(self) -> int:
        """The length in bytes."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole `buffer` from `offset`; called by several threads at once."""


class Kept(NamedTuple):
    """Stored chunks that follow each other in a source between two offsets."""

    start: int
    end: int
    chunks: Sequence[Chunk]


@runtime_checkable
class PartialSource(Source, Protocol):
    """A source that can be read in some ranges only: its other bytes are those of stored chunks."""

    @property
    def kept(self) -> Sequence[Kept]:
        """The chunks of the bytes that cannot be read, in order. The caller holds them in the store."""

    @property
    def ranges(self) -> Sequence[tuple[int, int]]:
        """The ranges that can be read, in order."""


@runtime_checkable
class SharedSource(Source, Protocol):
    """A source that other processes can read."""

    def share(self) -> tuple[str, bytes]:
        """Return (factory, data): `factory` is 'module:attribute'; calling it with `data` rebuilds this source in another process."""


@runtime_checkable
class ChunkedSource(Source, Protocol):
    """A source that says how long its chunks are: of large memory of which little changes, fewer and longer ones are handled sooner."""

    @property
    def chunk_pages(self) -> int:
        """See `chunking.cut`."""


class Segment(NamedTuple):
    """A part of a source between nominal borders; content shifts the real ones. `number`: the index of the source.

    `first` and `limit`: the borders of the range that can be read, which content does not shift. `chunk_pages`: see `chunking.cut`.
    """

    number: int
    start: int
    end: int
    first: int
    limit: int
    chunk_pages: int


class SegmentChunks(NamedTuple):
    """The chunks of a segment, the offset in its source where they begin, and the memory of each chunk that is not zeros."""

    start: int
    chunks: list[Chunk]
    views: dict[bytes, memoryview]


def segment_bytes(raw_bytes: int, threads: int) -> int:
    """Return the nominal length of segments, in bytes."""
    share = raw_bytes // (max(1, threads) * _SHARE)
    # A power of two, so that a slightly larger source has the same borders next time.
    return min(max(1 << share.bit_length(), MIN_SEGMENT), _MAX_SEGMENT)


def segments(sources: Sequence[Source], length: int) -> list[Segment]:
    """Return the segments, of `length` bytes each, of all sources."""
    return [
        Segment(number, start, min(start + length, limit), first, limit, _chunk_pages(source))
        for number, source in enumerate(sources)
        for first, limit in readable(source)
        for start in range(first, limit, length)
    ]


def _chunk_pages(source: Source) -> int:
    return source.chunk_pages if isinstance(source, ChunkedSource) else CHUNK_PAGES


def readable(source: Source) -> Sequence[tuple[int, int]]:
    """Return the ranges of a source that can be read."""
    return source.ranges if isinstance(source, PartialSource) else [(0, source.length)]


def chunks_of(
    source: Source, segment: Segment, memory: Callable[[int], memoryview]
) -> SegmentChunks:
    """Read a segment into `memory(length)` and cut it into chunks, between its borders by content.

    Neighboring segments find the same borders, because both search the same bytes: those after the nominal border.
    """
    length, pages = segment.end - segment.start, segment.chunk_pages
    ahead = min(LOOK_AHEAD, segment.limit - segment.end)
    buffer = memory(length + ahead)
    source.read_into(segment.start, buffer[:length])
    end = length
    looked = 0
    while looked < ahead:
        step = min(_LOOK_STEP, ahead - looked)
        source.read_into(segment.end + looked, buffer[length + looked :][:step])
        looked += step
        begin = first_begin(buffer[length : length + looked], pages)
        if begin is not None:
            end = length + begin
            break
    start = 0
    if segment.start > segment.first:
        # The previous segment makes the same search; it reaches beyond this segment's nominal end only at the end of the range.
        start = first_begin(buffer[: min(LOOK_AHEAD, length)], pages) or 0
    return SegmentChunks(segment.start + start, *_cut(buffer[start:end], pages))


def _cut(piece: memoryview, chunk_pages: int) -> tuple[list[Chunk], dict[bytes, memoryview]]:
    chunks: list[Chunk] = []
    views: dict[bytes, memoryview] = {}
    start = 0
    for end in cut(piece, chunk_pages):
        view = piece[start:end]
        # cut() promises that a chunk is either zeros or has no page of zeros.
        digest = b"" if is_zero(view[:PAGE]) else digest_of(view)
        chunks.append(Chunk(digest, end - start))
        if digest:
            views[digest] = view
        start = end
    return chunks, views
