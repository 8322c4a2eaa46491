"""Packing: the storing of sources of bytes as chunks.

Covers: reading in parallel, dropping zeros, deduplication, compression. Does not cover: the origin of the bytes (`Source`),
the boundaries of chunks (segments.py, chunking.py), the format (store). See also: unpack.py, the inverse.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import CheckpointError, GpuCkptError
from ..host import commands
from ..linux.fresh_memory import Scratch
from ..store.local import LocalStore
from ..store.writer import PackWriter, Record
from ..wire import stripes
from ..wire.manifest_records import Chunk, Stream
from ..wire.progress import Progress
from .chunking import CHUNK_PAGES, MAX_PAGES, PAGE
from .composing import COMPOSING_BYTES, Composer, Predecessor
from .compression import Compressor
from .pack_client import PLACE_BYTES, PLACES, LookUp, PackClient, Stored
from .segments import (
    LOOK_AHEAD,
    MIN_SEGMENT,
    Kept,
    PartialSource,
    Segment,
    SharedSource,
    Source,
    chunks_of,
    readable,
    segment_bytes,
    segments,
)
from .worker_processes import worth_it
from .worker_threads import share_out
from .working_memory import fitting

logger = logging.getLogger(__name__)

__all__ = ["BytesSource", "FileSource", "Packed", "Source", "join", "pack"]

# Compressed bytes that a thread collects for one write.
_WRITE_BYTES = 4 << 20
# The memory of a thread besides its segment: the segment's excess, collected bytes, a chunk's groups and its payload.
_BESIDE = LOOK_AHEAD + _WRITE_BYTES + 2 * MAX_PAGES * PAGE
_BESIDE_PROCESS = LOOK_AHEAD + PLACES * PLACE_BYTES + 2 * MAX_PAGES * PAGE


class Packed(NamedTuple):
    """The result of `pack`.

    `new_bytes`: the compressed bytes of the chunks that were not in the store before.
    """

    streams: list[Stream]
    raw_bytes: int
    new_bytes: int

    @classmethod
    def of_nothing(cls) -> Packed:
        """Return the result for no streams."""
        return cls([], 0, 0)

    def and_also(self, other: Packed) -> Packed:
        """Return the sum of both results."""
        return Packed(
            [*self.streams, *other.streams],
            self.raw_bytes + other.raw_bytes,
            self.new_bytes + other.new_bytes,
        )


class _Done(NamedTuple):
    """The chunks of a segment that was stored, the offset in its source where they begin, and what that added to the store."""

    start: int
    chunks: Sequence[Chunk]
    new_bytes: int


def pack(
    sources: Sequence[Source],
    store: LocalStore,
    *,
    threads: int,
    progress: Progress,
    memory_bytes: int = 0,
    predecessor: Predecessor | None = None,
    writer: PackWriter | None = None,
) -> Packed:
    """Store every source; on return all is durable, and stays in the store until a manifest that refers to it is published.

    `writer`: writes the chunks in place of a writer of its own; then they are durable when the caller has finished that.

    Chunks of which few pages changed since the `predecessor` are composed of stored chunks (`composing.py`). Of a `PartialSource` only
    its ranges are read.

    `progress` advances by the sources' bytes. The first error of any thread stops the others and is raised: a source's own
    error, OperationCancelled, StoreFull, StoreUnavailable, CheckpointError when a source changed while it was read. Chunks
    that were complete by then are kept for the next attempt. Buffers take at most `memory_bytes` (0: a quarter of the free
    memory), but always as much as one thread needs: 12 MiB, with a process 20 MiB, with a predecessor 10 MiB more.
    """
    raw_bytes = sum(source.length for source in sources)
    to_read = sum(end - begin for source in sources for begin, end in readable(source))
    wide = worth_it(to_read, threads)
    beside = _BESIDE_PROCESS if wide else _BESIDE
    threads, length = fitting(
        threads,
        segment_bytes(to_read, threads),
        min_bytes=MIN_SEGMENT,
        beside_bytes=beside + (COMPOSING_BYTES if predecessor else 0),
        memory_bytes=memory_bytes,
    )
    predecessor = predecessor or Predecessor()
    shares = {
        number: source.share()
        for number, source in enumerate(sources)
        if wide and isinstance(source, SharedSource)
    }
    waiting = segments(sources, length)
    done: dict[Segment, _Done] = {}
    with (
        nullcontext(writer) if writer else store.writer() as writing,
        store.holding(predecessor.digests),
        ExitStack() as stack,
    ):

        def make_worker() -> Callable[[Segment], None]:
            work_on = _Worker(sources, shares, length, store, writing, predecessor, stack).store

            def work(segment: Segment) -> None:
                done[segment] = work_on(segment)
                progress.advance(segment.end - segment.start)

            return work

        parts = [_kept(source) for source in sources]
        progress.advance(raw_bytes - to_read)
        if waiting:
            share_out(waiting, make_worker, min(threads, len(waiting)))
        if writer is None:
            writing.finish()
    for segment in waiting:
        parts[segment.number].append(done[segment])
    streams = [
        join(source.name, source.length, sorted(found, key=lambda one: one.start))
        for source, found in zip(sources, parts, strict=True)
    ]
    return Packed(streams, raw_bytes, sum(segment.new_bytes for segment in done.values()))


class _Worker:
    """The worker of one thread, with a process of its own for sources that other processes can read (`shares`)."""

    def __init__(
        self,
        sources: Sequence[Source],
        shares: dict[int, tuple[str, bytes]],
        segment_bytes: int,
        store: LocalStore,
        writer: PackWriter,
        predecessor: Predecessor,
        stack: ExitStack,
    ) -> None:
        self._sources, self._shares = sources, shares
        self._store, self._writer, self._predecessor = store, writer, predecessor
        self._scratch, self._compressor, self._composer = Scratch(), Compressor(), Composer()
        self._process: PackClient | None = None
        if shares:
            try:
                self._process = PackClient(shares, segment_bytes)
            except (commands.CommandFailed, GpuCkptError, OSError) as error:
                logger.warning(
                    "no worker process; a thread packs this part of the snapshot: %s", error
                )
            else:
                stack.callback(self._process.close)

    def store(self, segment: Segment) -> _Done:
        """Cut a segment, and append what the store lacks."""
        source = self._sources[segment.number]
        look_up = partial(self._predecessor.look_up, source.name, store=self._store)
        if self._process is None or segment.number not in self._shares:
            found = self._store_myself(source, segment, look_up)
        else:
            found = self._process.store(segment, self._writer, look_up)
        sources = {part.digest for chunk in found.composed.values() for part in chunk.stored()}
        if sources:
            # Pins beyond this operation are needed only for the chunks that were used.
            self._writer.known(sources)
        self._predecessor.remember(found.composed)
        chunks = [found.composed.get(chunk.digest, chunk) for chunk in found.chunks]
        return _Done(found.start, chunks, found.new_bytes)

    def _store_myself(self, source: Source, segment: Segment, look_up: LookUp) -> Stored:
        found = chunks_of(source, segment, self._scratch.get)
        stored = set(self._writer.known(found.views))
        unknown = [digest for digest in found.views if digest not in stored]
        earlier = look_up(found.start, found.chunks, unknown)
        composed = earlier.composed
        new_bytes = gathered = 0
        records: list[Record] = []
        for chunk in unknown:
            if chunk in composed:
                continue
            digest, view = chunk, found.views[chunk]
            made = self._composer.compose(view, chunk, earlier.offer)
            if made is not None:
                composed[chunk] = Chunk(chunk, len(view), made.parts)
                digest, view = made.digest, made.fresh
            if not digest or digest in stored:
                continue
            codec, payload = self._compressor.compress(view)
            records.append(Record(digest, payload, len(view), codec))
            stored.add(digest)
            gathered += len(payload)
            if gathered >= _WRITE_BYTES:
                new_bytes += self._writer.append_all(records)
                records, gathered = [], 0
        if records:
            new_bytes += self._writer.append_all(records)
        return Stored(found.start, found.chunks, composed, new_bytes)


class BytesSource:
    """A source of bytes in memory."""

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
    """A source of the bytes of a file, or of several that hold them in stripes (`stripes.py`), with their present length.

    Each read opens the files: unlink them only after `pack` has returned. `chunk_pages`: see `chunking.cut`.
    """

    def __init__(self, name: str, *paths: Path, chunk_pages: int = CHUNK_PAGES) -> None:
        self.name, self._paths, self.chunk_pages = name, paths, chunk_pages
        self.length = sum(path.stat().st_size for path in paths)

    def share(self) -> tuple[str, bytes]:
        """Return (factory, data) as in `SharedSource`."""
        return f"{__name__}:shared_file", "\0".join([self.name, *map(str, self._paths)]).encode(
            errors="surrogateescape"
        )

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`. Raises OSError, and CheckpointError if a file became shorter."""
        if len(self._paths) == 1:
            self._read(self._paths[0], offset, buffer)
            return
        for part in stripes.parts(offset, len(buffer), len(self._paths)):
            self._read(self._paths[part.file], part.offset, buffer[: part.length])
            buffer = buffer[part.length :]

    def _read(self, path: Path, offset: int, buffer: memoryview) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while len(buffer):
                count = os.preadv(descriptor, [buffer], offset)
                if not count:
                    raise _changed(self.name)
                offset, buffer = offset + count, buffer[count:]
        finally:
            os.close(descriptor)


def shared_file(data: bytes) -> FileSource:
    """Return the source that another process described by `FileSource.share`."""
    name, *paths = data.decode(errors="surrogateescape").split("\0")
    return FileSource(name, *map(Path, paths))


def _kept(source: Source) -> list[_Done]:
    """Return the chunks of a source that an earlier snapshot stored."""
    if not isinstance(source, PartialSource):
        return []
    return [_Done(one.start, one.chunks, 0) for one in source.kept]


def join(name: str, length: int, parts: Sequence[_Done | Kept]) -> Stream:
    """Return the stream of these parts, with neighboring chunks of zeros merged. Raises CheckpointError if one is missing."""
    chunks: list[Chunk] = []
    offset = zeros = 0
    for part in parts:
        if part.start != offset:
            raise _changed(name)
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
    if offset != length:
        raise _changed(name)
    return Stream(name, length, chunks)


def _changed(name: str) -> CheckpointError:
    return CheckpointError(
        f"{name} changed while it was saved.", hint="Something outside wrote to it; try again."
    )
