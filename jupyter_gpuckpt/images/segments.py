"""Segments: parts of sources, each of which is packed by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from ..model import Chunk
from ..store.codecs import digest_of
from .chunking import PAGE, cut, first_begin, is_zero

_MAX_SEGMENT = 16 << 20
MIN_SEGMENT = 2 << 20
# Segments per thread, so that all are busy to the end.
_SHARE = 4
#: How far beyond a segment's nominal end a boundary by content is looked for (one in 3,000 finds none), and in what steps.
LOOK_AHEAD = 2 << 20
_LOOK_STEP = 1 << 18


class Source(Protocol):
    """A sequence of bytes to be stored as a stream of this name. It must not change while it is packed."""

    @property
    def name(self) -> str:
        """The name of the stream."""

    @property
    def length(self) -> int:
        """The length in bytes."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole `buffer` from `offset`; called by several threads at once."""


@runtime_checkable
class SharedSource(Source, Protocol):
    """A source that other processes can read."""

    def share(self) -> tuple[str, bytes]:
        """Of a function, module:attribute, that makes a source of the same bytes of the data."""


class Segment(NamedTuple):
    """A part of a source between nominal borders, which content shifts. `number`: that of the source."""

    number: int
    start: int
    end: int


class Found(NamedTuple):
    """The chunks of a segment, where in its source they begin, and where in memory each of them lies that is not zeros."""

    start: int
    chunks: list[Chunk]
    views: dict[bytes, memoryview]


def segment_bytes(raw_bytes: int, threads: int) -> int:
    """Return the length of segments."""
    share = raw_bytes // (max(1, threads) * _SHARE)
    # A power of two: the same borders next time, when a little more is to be read.
    return min(max(1 << share.bit_length(), MIN_SEGMENT), _MAX_SEGMENT)


def segments(sources: Sequence[Source], length: int) -> list[Segment]:
    """Return all sources in segments of `length` bytes."""
    return [
        Segment(number, start, min(start + length, source.length))
        for number, source in enumerate(sources)
        for start in range(0, source.length, length)
    ]


def chunks_of(source: Source, segment: Segment, memory: Callable[[int], memoryview]) -> Found:
    """Read a segment into `memory(length)` and cut it. It holds what lies between its borders by content.

    The neighbours find the same borders, because each looks at the same bytes: those that follow the nominal border.
    """
    length = segment.end - segment.start
    ahead = min(LOOK_AHEAD, source.length - segment.end)
    buffer = memory(length + ahead)
    source.read_into(segment.start, buffer[:length])
    end = length
    looked = 0
    while looked < ahead:
        step = min(_LOOK_STEP, ahead - looked)
        source.read_into(segment.end + looked, buffer[length + looked :][:step])
        looked += step
        begin = first_begin(buffer[length : length + looked])
        if begin is not None:
            end = length + begin
            break
    start = 0
    if segment.start:
        # As the neighbour before sees it: its view may go beyond this segment's nominal end only where the source ends.
        start = first_begin(buffer[: min(LOOK_AHEAD, length)]) or 0
    return Found(segment.start + start, *_cut(buffer[start:end]))


def _cut(piece: memoryview) -> tuple[list[Chunk], dict[bytes, memoryview]]:
    chunks: list[Chunk] = []
    views: dict[bytes, memoryview] = {}
    start = 0
    for end in cut(piece):
        view = piece[start:end]
        # cut() promises that a chunk is either zeros or has no page of zeros.
        digest = b"" if is_zero(view[:PAGE]) else digest_of(view)
        chunks.append(Chunk(digest, end - start))
        if digest:
            views[digest] = view
        start = end
    return chunks, views
