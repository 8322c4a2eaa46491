"""Sources of which a file has only what changed; the rest is in chunks of an earlier snapshot.

Covers: which of the earlier chunks can be used, and the source that reads the file. Does not cover: who knows what changed
(`snapshots.gpu_tables`), storing (pack.py).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..wire import decoding
from ..wire.manifest_records import Chunk, Stream
from .chunking import CHUNK_PAGES
from .pack import FileSource
from .segments import Kept

Ranges = Sequence[tuple[int, int]]

#: Where more ranges than this would have to be read, or more of the stream, reading all of it is as quick.
_MAX_RANGES = 20_000
_MAX_READ_SHARE = 0.5


class Usable(NamedTuple):
    """The chunks of an earlier stream that a new one can use, and the ranges of the new one that must be read."""

    kept: list[Kept]
    ranges: list[tuple[int, int]]


class Layout:
    """The chunks of a stream by their places. `missing`: the digests of stored chunks that the store does not have any more."""

    def __init__(self, stream: Stream, missing: Collection[bytes]) -> None:
        self._chunks = stream.chunks
        lengths = np.array([chunk.length for chunk in stream.chunks], np.int64)
        self._ends = np.cumsum(lengths)
        self._begins = self._ends - lengths
        gone = [
            number
            for number, chunk in enumerate(stream.chunks if missing else ())
            if any(part.digest in missing for part in chunk.stored())
        ]
        #: The numbers of chunks of which something is not stored any more.
        self._gone = np.array(gone, np.int64)

    def inside(self, begin: int, end: int, shift: int) -> list[Kept]:
        """Return the chunks between two offsets, as they are in a stream where they are `shift` bytes later."""
        if not len(self._ends):
            return []
        first = int(np.searchsorted(self._begins, begin))
        last = int(np.searchsorted(self._ends, end, side="right"))
        found = list[Kept]()
        # Zeros have no digest, so a part of them is a chunk as well.
        if first and self._is_zeros(first - 1) and self._ends[first - 1] > begin:
            length = min(int(self._ends[first - 1]), end) - begin
            found.append(Kept(begin + shift, begin + shift + length, [Chunk(b"", length)]))
        gone = self._gone[np.searchsorted(self._gone, first) : np.searchsorted(self._gone, last)]
        for stop in [*gone.tolist(), last]:
            if stop > first:
                start, after = int(self._begins[first]), int(self._ends[stop - 1])
                found.append(Kept(start + shift, after + shift, self._chunks[first:stop]))
            first = stop + 1
        if last < len(self._chunks) and self._is_zeros(last) and begin <= self._begins[last] < end:
            start = int(self._begins[last])
            found.append(Kept(start + shift, end + shift, [Chunk(b"", end - start)]))
        return found

    def _is_zeros(self, number: int) -> bool:
        return not self._chunks[number].digest


def usable(layout: Layout, origin: NDArray[np.int64], piece: int) -> Usable | None:
    """Return what of an earlier stream a new one can use; None if so little that all of it should be read.

    `origin`: for each piece of `piece` bytes of the new stream, the number of the piece of the earlier one with the same bytes; -1: none
    has.
    """
    kept: list[Kept] = []
    is_new = origin < 0
    breaks = (is_new[1:] != is_new[:-1]) | (~is_new[1:] & (np.diff(origin) != 1))
    begins = np.append(0, np.flatnonzero(breaks) + 1) if len(origin) else np.empty(0, np.int64)
    for first, end in zip(begins.tolist(), [*begins[1:].tolist(), len(origin)], strict=True):
        if origin[first] >= 0:
            shift = (first - int(origin[first])) * piece
            kept += layout.inside(first * piece - shift, end * piece - shift, shift)
        if len(kept) > _MAX_RANGES:
            return None
    ranges, at, length = list[tuple[int, int]](), 0, len(origin) * piece
    for one in kept:
        if one.start > at:
            ranges.append((at, one.start))
        at = one.end
    if at < length:
        ranges.append((at, length))
    if sum(end - begin for begin, end in ranges) > _MAX_READ_SHARE * length:
        return None
    return Usable(kept, ranges)


def around(ranges: Ranges, length: int) -> list[Kept]:
    """Return zeros in place of what lies around the ranges of a stream, of which only these are to be stored now."""
    ends = [0, *(end for _, end in ranges)]
    begins = [*(begin for begin, _ in ranges), length]
    return [
        Kept(at, begin, [Chunk(b"", begin - at)])
        for at, begin in zip(ends, begins, strict=True)
        if begin > at
    ]


class _Shared(msgspec.Struct):
    """A `PartialFileSource` as it travels to another process."""

    name: str
    paths: list[bytes]
    length: int
    ranges: list[tuple[int, int]]
    is_whole: bool


class PartialFileSource(FileSource):
    """A source of a stream of which files have the ranges, one after the other, or with `is_whole` at their own offsets.

    `paths`, `chunk_pages`: as in `FileSource`. `kept`: see `PartialSource`.
    """

    def __init__(
        self,
        name: str,
        *paths: Path,
        length: int,
        ranges: Ranges,
        kept: Sequence[Kept] = (),
        is_whole: bool = False,
        chunk_pages: int = CHUNK_PAGES,
    ) -> None:
        super().__init__(name, *paths, chunk_pages=chunk_pages)
        self.length, self.ranges, self._is_whole = length, list(ranges), is_whole
        self.kept = kept
        self._begins = [begin for begin, _ in self.ranges]
        before = accumulate((end - begin for begin, end in self.ranges), initial=0)
        #: How much earlier each range is in the file than in the stream.
        self._shifts = [0 if is_whole else b - at for b, at in zip(self._begins, before)]  # noqa: B905

    def share(self) -> tuple[str, bytes]:
        """Return (factory, data) as in `SharedSource`."""
        ranges = list(self.ranges)
        shared = _Shared(
            self.name,
            list(map(os.fsencode, self._paths)),
            self.length,
            ranges,
            is_whole=self._is_whole,
        )
        return f"{__name__}:shared_partial_file", msgspec.msgpack.encode(shared)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `offset`. All of them must lie in one range."""
        shift = self._shifts[bisect_right(self._begins, offset) - 1]
        super().read_into(offset - shift, buffer)


def shared_partial_file(data: bytes) -> PartialFileSource:
    """Return the source that another process described by `PartialFileSource.share`."""
    found = decoding.from_msgpack(data, _Shared)
    return PartialFileSource(
        found.name,
        *(Path(os.fsdecode(path)) for path in found.paths),
        length=found.length,
        ranges=found.ranges,
        is_whole=found.is_whole,
    )
