"""Unpacking: the writing of stored chunks to sinks of bytes.

Covers: reading packs in order, decompressing and verifying in parallel, reading a stream at any place. Does not cover: the
destination of the bytes (`Sink`; sinks.py has files). See also: pack.py, the inverse.
"""

from __future__ import annotations

import bisect
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Protocol, runtime_checkable

from ..errors import OperationCancelled
from ..host import commands
from ..store.manifests import digests_of
from ..store.read_only import ReadableStore
from ..wire.manifest_records import Chunk, Stream
from ..wire.progress import Progress
from .chunking import MAX_PAGES, PAGE
from .reading_order import check_length, table_of, zeros_in
from .sinks import FileSink
from .spans import Damaged, SpanReader, SpanRow, SpanWorker
from .unpack_client import SharedSink, UnpackClient
from .worker_processes import worth_it
from .worker_threads import share_out
from .working_memory import fitting
from .written import WrittenBytes

logger = logging.getLogger(__name__)

__all__ = [
    "FileSink",
    "PreparedSink",
    "Sink",
    "StreamReader",
    "Unpacking",
    "part_of",
    "read_stream",
]

# The largest span, and the largest where memory is short.
_SPAN_BYTES = 4 << 20
_MIN_SPAN_BYTES = MAX_PAGES * PAGE
# The memory of a thread besides its span: a chunk, and its groups.
_BESIDE = 2 * MAX_PAGES * PAGE
# The number of chunks that a StreamReader caches.
_KEPT = 8


class Sink(Protocol):
    """A destination of a stream's bytes."""

    def write(self, offset: int, data: memoryview) -> None:
        """Put `data` at `offset` of the stream; called by several threads at once, in no order.

        Zeros are never written. `data` is memory of the caller, which must not be changed or kept.
        """


@runtime_checkable
class PreparedSink(Sink, Protocol):
    """A sink that must know the length first."""

    def prepare(self, length: int) -> None:
        """Prepare for a stream of this length; called once, before any write."""


class Unpacking:
    """A reader of streams into sinks.

    The constructor looks up the places of all chunks and prepares the sinks, so that `run` only reads, verifies and writes.

    `by_stream`: the streams are written from their beginnings on, so that `wait_for` returns early.

    Buffers take at most `memory_bytes` (0: a quarter of the free memory), but always as much as one thread needs: 6 MiB. The
    constructor raises ObjectCorrupt, which names a chunk that is not in the store, ManifestInvalid, and the errors of `prepare`.
    """

    def __init__(
        self,
        jobs: Sequence[tuple[Stream, Sink]],
        store: ReadableStore,
        *,
        threads: int,
        memory_bytes: int = 0,
        by_stream: bool = False,
    ) -> None:
        self._jobs, self._store = jobs, store
        self._threads, span_bytes = fitting(
            threads,
            _SPAN_BYTES,
            min_bytes=_MIN_SPAN_BYTES,
            beside_bytes=_BESIDE,
            memory_bytes=memory_bytes,
        )
        streams = [stream for stream, _ in jobs]
        self._digests, self._zeros = digests_of(streams), zeros_in(streams)
        self._table = table_of(
            streams, store, span_bytes=span_bytes, threads=self._threads, by_stream=by_stream
        )
        lengths = [stream.length for stream in streams]
        self._written = WrittenBytes(self._table, lengths)
        self._shared = [sink for _, sink in jobs if isinstance(sink, SharedSink)]
        stored = sum(stream.length for stream in streams) - self._zeros
        wide = len(self._shared) == len(jobs) and worth_it(stored, self._threads)
        for stream, sink in jobs:
            if isinstance(sink, PreparedSink):
                sink.prepare(stream.length)
        self._processes = self._started() if wide else None
        self._stopped = threading.Event()

    def run(self, progress: Progress) -> None:
        """Write every stream to its sink. Every digest is verified before its bytes are written.

        `progress` advances by the streams' bytes, zeros included. The first error of any thread stops the others and is
        raised: a sink's own error, OperationCancelled, ObjectCorrupt naming pack and chunk. Chunks that were moved to another
        pack after the look-up are found there.
        """
        try:
            self._run(progress)
        except BaseException as error:
            self._written.fail(error)
            raise

    def wait_for(self, stream: int, begin: int, end: int, *, seconds: float | None = None) -> int:
        """Wait until `run` has written a stream, by its number, from `begin` to `end`; return the end of what it has written from there.

        After `seconds` it returns where less is written; without them it waits for ever if `run` is not called. Raises the error of `run`.
        """
        return self._written.wait_for(stream, begin, end, seconds=seconds)

    def stop(self) -> None:
        """Make `run` raise OperationCancelled after its next span of chunks, also if it is called later."""
        self._stopped.set()

    def _run(self, progress: Progress) -> None:
        with self._store.holding(self._digests):
            progress.advance(self._zeros)
            writes = [sink.write for _, sink in self._jobs]

            def read_again(damaged: Damaged) -> None:
                # The store looks the chunk up again; if it is damaged there, the error names it.
                data = memoryview(bytearray(self._store.load(damaged.digest)))
                for number, at, start, length in damaged.targets:
                    writes[number](at, data[start : start + length])

            def written(span: int, count: int) -> None:
                if self._stopped.is_set():
                    raise OperationCancelled("The reading of the snapshot was stopped.")
                self._written.finish_span(span)
                progress.advance(count)

            if self._processes is not None:
                self._processes.work(self._shared, written, read_again)
                return

            def make_worker() -> Callable[[SpanRow], None]:
                reader = SpanReader(self._store.read_span)
                return SpanWorker(self._table, reader.read, writes, read_again, written).work

            spans = self._table.spans.tolist()
            share_out(spans, make_worker, min(self._threads, len(spans)))

    def _started(self) -> UnpackClient | None:
        """Start processes that take spans from the table; return None if they cannot be started."""
        try:
            return UnpackClient(self._table, self._shared, self._threads)
        except (commands.CommandFailed, OSError) as error:
            logger.warning("no worker processes; threads read the snapshot: %s", error)
            return None


def part_of(stream: Stream, ranges: Iterable[tuple[int, int]]) -> Stream:
    """Return the stream with the chunks outside of these ranges replaced by zeros, which are neither read nor written.

    A range is (start, end) in bytes; the ranges are in ascending order.
    """
    left, chunks, offset = deque(ranges), list[Chunk](), 0
    for chunk in stream.chunks:
        while left and left[0][1] <= offset:
            left.popleft()
        end = offset + chunk.length
        wanted = left and left[0][0] < end
        chunks.append(chunk if wanted else Chunk(b"", chunk.length))
        offset = end
    return Stream(stream.name, stream.length, chunks)


class StreamReader:
    """A random-access reader of a stream that verifies every chunk and caches the last ones; thread-safe."""

    def __init__(self, stream: Stream, store: ReadableStore) -> None:
        self._stream, self._store = stream, store
        self._ends = list(accumulate(chunk.length for chunk in stream.chunks))
        check_length(stream, self._ends[-1] if self._ends else 0)
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`, fewer at the end. Raises ObjectCorrupt."""
        pieces = []
        end = min(offset + length, self._stream.length)
        index = bisect.bisect_right(self._ends, offset)
        while offset < end:
            chunk = self._stream.chunks[index]
            skip = offset - (self._ends[index] - chunk.length)
            count = min(end - offset, chunk.length - skip)
            pieces.append(self._chunk(chunk)[skip : skip + count] if chunk.digest else bytes(count))
            offset, index = offset + count, index + 1
        return b"".join(pieces)

    def _chunk(self, chunk: Chunk) -> bytes:
        with self._lock:
            data = self._kept.get(chunk.digest)
            if data is None:
                data = self._load(chunk)
                self._kept[chunk.digest] = data
                if len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            return data

    def _load(self, chunk: Chunk) -> bytes:
        if not chunk.parts:
            return self._store.load(chunk.digest)
        parts = list(chunk.stored())
        sources = {digest: self._store.load(digest) for digest in {part.digest for part in parts}}
        data = b"".join(sources[digest][start : start + length] for digest, start, length in parts)
        check_length(Stream(self._stream.name, chunk.length, []), len(data))
        return data


def read_stream(stream: Stream, store: ReadableStore) -> bytes:
    """Return all bytes of a stream, for small ones. Raises ObjectCorrupt."""
    return StreamReader(stream, store).read(0, stream.length)
