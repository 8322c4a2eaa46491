"""From sources of bytes to chunks in a store.

Covers: reading in parallel, dropping zeros, deduplication, compression. Does not cover: where the bytes come from (`Source`),
where to cut (chunking.py), the format (store). See also: unpack.py, the way back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from ..errors import CheckpointError
from ..model import Chunk, Stream
from ..progress import Progress
from ..store.codecs import digest_of
from ..store.local import LocalStore
from ..store.scratch import Scratch
from ..store.writer import PackWriter, Record
from .chunking import MAX_PAGES, PAGE, cut, first_begin, is_zero
from .compression import Compressor
from .workers import share_out
from .working_memory import fitting

_MAX_SEGMENT = 16 << 20
_MIN_SEGMENT = 2 << 20
# Segments per thread, so that all are busy to the end.
_SHARE = 4
# How far beyond a segment's nominal end a boundary by content is looked for (one in 3,000 finds none), and in what steps.
_LOOK_AHEAD = 2 << 20
_LOOK_STEP = 1 << 18
# Compressed bytes that a thread gathers for one write.
_WRITE_BYTES = 4 << 20
# What a thread needs besides its segment, which may be 2 MiB longer, and what it gathers: a chunk's groups and its payload.
_BESIDE = _LOOK_AHEAD + _WRITE_BYTES + 2 * MAX_PAGES * PAGE


class Source(Protocol):
    """A sequence of bytes to be stored as a stream of this name. It must not change while it is packed."""

    @property
    def name(self) -> str:
        """Of the stream."""

    @property
    def length(self) -> int:
        """In bytes."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole `buffer` from `offset`; called by several threads at once."""


class Packed(NamedTuple):
    """What `pack` did. `stored`: the compressed bytes of each chunk that the streams refer to; `new_bytes`: of these, what was not
    in the store."""

    streams: list[Stream]
    raw_bytes: int
    stored: dict[bytes, int]
    new_bytes: int

    @classmethod
    def of_nothing(cls) -> Packed:
        """No stream."""
        return cls([], 0, {}, 0)

    @property
    def stored_bytes(self) -> int:
        """Of all chunks."""
        return sum(self.stored.values())

    def and_also(self, other: Packed) -> Packed:
        """Both together."""
        return Packed(
            [*self.streams, *other.streams],
            self.raw_bytes + other.raw_bytes,
            {**self.stored, **other.stored},
            self.new_bytes + other.new_bytes,
        )


class _Segment(NamedTuple):
    """A part of a source between nominal borders; content shifts them. `number`: that of the source."""

    number: int
    source: Source
    start: int
    end: int


class _Done(NamedTuple):
    """A segment's chunks and the offset in its source where they begin."""

    start: int
    chunks: list[Chunk]


def pack(
    sources: Sequence[Source],
    store: LocalStore,
    *,
    threads: int,
    progress: Progress,
    memory_bytes: int = 0,
) -> Packed:
    """Store every source; all is durable when this returns, and stays in the store until a manifest that refers to it is published.

    `progress` advances by the sources' bytes. The first error of any thread stops the others and is raised: what a source
    raises, OperationCancelled, StoreFull, StoreUnavailable, CheckpointError when a source changed while it was read.
    Chunks that were complete by then are kept for the next try. At most `memory_bytes` of memory are worked with (0: a quarter
    of what is free), but always as much as one thread needs: 12 MiB.
    """
    raw_bytes = sum(source.length for source in sources)
    threads, segment_bytes = fitting(
        threads,
        _segment_bytes(raw_bytes, threads),
        least_bytes=_MIN_SEGMENT,
        beside_bytes=_BESIDE,
        memory_bytes=memory_bytes,
    )
    segments = _segments(sources, segment_bytes)
    done: dict[_Segment, _Done] = {}
    totals = _Totals()
    with store.writer() as writer:

        def make_worker() -> Callable[[_Segment], None]:
            scratch, compressor = Scratch(), Compressor()

            def work(segment: _Segment) -> None:
                start, piece = _read(segment, scratch)
                done[segment] = _Done(start, _store(piece, compressor, writer, totals))
                progress.advance(segment.end - segment.start)

            return work

        share_out(segments, make_worker, min(threads, len(segments)))
        writer.finish()
    parts: list[list[_Done]] = [[] for _ in sources]
    for segment in segments:
        parts[segment.number].append(done[segment])
    streams = [_join(source, found) for source, found in zip(sources, parts, strict=True)]
    return Packed(streams, raw_bytes, totals.stored, totals.new_bytes)


class BytesSource:
    """Bytes in memory."""

    def __init__(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self.name = name
        self._data = memoryview(data).cast("B")
        self.length = len(self._data)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`."""
        # numpy copies without the GIL; a memoryview's own slices are assigned under it.
        part = np.frombuffer(self._data[offset : offset + len(buffer)], np.uint8)
        np.frombuffer(buffer, np.uint8)[:] = part


class FileSource:
    """A file, as long as it is now. Opened by each read, so it may be unlinked as soon as `pack` has returned, not before."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self._path = name, path
        self.length = path.stat().st_size

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`. Raises OSError, CheckpointError when the file became shorter."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while len(buffer):
                count = os.preadv(descriptor, [buffer], offset)
                if not count:
                    raise _changed(self.name)
                offset, buffer = offset + count, buffer[count:]
        finally:
            os.close(descriptor)


class _Totals:
    """Counted by all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.stored: dict[bytes, int] = {}
        self.new_bytes = 0

    def add(self, stored: dict[bytes, int], new_bytes: int) -> None:
        with self._lock:
            self.stored.update(stored)
            self.new_bytes += new_bytes


def _segment_bytes(raw_bytes: int, threads: int) -> int:
    share = raw_bytes // (max(1, threads) * _SHARE)
    # A power of two: the same borders next time, when a little more is to be read.
    return min(max(1 << share.bit_length(), _MIN_SEGMENT), _MAX_SEGMENT)


def _segments(sources: Sequence[Source], length: int) -> list[_Segment]:
    return [
        _Segment(number, source, start, min(start + length, source.length))
        for number, source in enumerate(sources)
        for start in range(0, source.length, length)
    ]


def _read(segment: _Segment, scratch: Scratch) -> tuple[int, memoryview]:
    """The segment's bytes between its borders by content, and where they begin.

    The neighbours find the same borders, because each looks at the same bytes: those that follow the nominal border.
    """
    length = segment.end - segment.start
    ahead = min(_LOOK_AHEAD, segment.source.length - segment.end)
    buffer = scratch.get(length + ahead)
    segment.source.read_into(segment.start, buffer[:length])
    end = length
    looked = 0
    while looked < ahead:
        step = min(_LOOK_STEP, ahead - looked)
        segment.source.read_into(segment.end + looked, buffer[length + looked :][:step])
        looked += step
        begin = first_begin(buffer[length : length + looked])
        if begin is not None:
            end = length + begin
            break
    start = 0
    if segment.start:
        # As the neighbour before sees it: its view may go beyond this segment's nominal end only where the source ends.
        start = first_begin(buffer[: min(_LOOK_AHEAD, length)]) or 0
    return segment.start + start, buffer[start:end]


def _store(
    piece: memoryview, compressor: Compressor, writer: PackWriter, totals: _Totals
) -> list[Chunk]:
    """Cut, and append what the store lacks."""
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
    stored = writer.known(views)
    new_bytes = gathered = 0
    records: list[Record] = []
    for digest, view in views.items():
        if digest in stored:
            continue
        codec, payload = compressor.compress(view)
        records.append(Record(digest, payload, len(view), codec))
        stored[digest] = len(payload)
        gathered += len(payload)
        if gathered >= _WRITE_BYTES:
            new_bytes += writer.append_all(records)
            records, gathered = [], 0
    if records:
        new_bytes += writer.append_all(records)
    totals.add(stored, new_bytes)
    return chunks


def _join(source: Source, parts: list[_Done]) -> Stream:
    """The stream, with neighbouring zeros made one."""
    chunks: list[Chunk] = []
    offset = zeros = 0
    for part in parts:
        if part.start != offset:
            raise _changed(source.name)
        for chunk in part.chunks:
            offset += chunk.length
            if not chunk.digest:
                zeros += chunk.length
                continue
            if zeros:
                chunks.append(Chunk(b"", zeros))
                zeros = 0
            chunks.append(chunk)
    if zeros:
        chunks.append(Chunk(b"", zeros))
    if offset != source.length:
        raise _changed(source.name)
    return Stream(source.name, source.length, chunks)


def _changed(name: str) -> CheckpointError:
    return CheckpointError(
        f"{name} changed while it was saved.", hint="Something outside wrote to it; try again."
    )
