"""From chunks in a store back to bytes.

Covers: reading packs in order, decompressing and verifying in parallel, reading a stream at any place. Does not cover: where
the bytes go (`Sink`; sinks.py has files). See also: pack.py, the way there.
"""

from __future__ import annotations

import bisect
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Protocol, runtime_checkable

from ..errors import ManifestInvalid
from ..host import commands
from ..model import Chunk, Stream
from ..progress import Progress
from ..store.catalog import Location
from ..store.local import LocalStore
from .chunking import MAX_PAGES, PAGE
from .runs import Record, Run, RunWorker, Target
from .sinks import FileSink
from .unpack_processes import SharedSink, UnpackProcesses, worth_it
from .workers import share_out
from .working_memory import fitting

logger = logging.getLogger(__name__)

__all__ = ["FileSink", "PreparedSink", "Sink", "StreamReader", "Unpacking", "read_stream", "unpack"]

# Records that lie this close together are read in one go, up to so many bytes, or fewer where memory is short.
_RUN_GAP = 256 << 10
_RUN_BYTES = 4 << 20
_LEAST_RUN_BYTES = MAX_PAGES * PAGE
# What a thread needs besides: a chunk, and its groups.
_BESIDE = 2 * MAX_PAGES * PAGE
# Places to which one thread writes a chunk that is there many times.
_SHARED = 16
# Chunks that a StreamReader keeps.
_KEPT = 8


class Sink(Protocol):
    """Where a stream's bytes go."""

    def write(self, offset: int, data: memoryview) -> None:
        """Put `data` at `offset` of the stream; called by several threads at once, in no order.

        Zeros are never written. `data` is writable memory of the caller and must not be kept.
        """


@runtime_checkable
class PreparedSink(Sink, Protocol):
    """A sink that wants to know the length first."""

    def prepare(self, length: int) -> None:
        """Called once, before any write."""


class Unpacking:
    """Streams on their way to sinks: where everything lies is looked up when this is made, so that `run` does nothing but read,
    verify and write.

    At most `memory_bytes` of memory are worked with (0: a quarter of what is free), but always as much as one thread needs:
    6 MiB. Making it raises ObjectCorrupt naming a chunk that is not in the store, and ManifestInvalid.
    """

    def __init__(
        self,
        jobs: Sequence[tuple[Stream, Sink]],
        store: LocalStore,
        *,
        threads: int,
        memory_bytes: int = 0,
    ) -> None:
        self._jobs, self._store = jobs, store
        self._threads, run_bytes = fitting(
            threads,
            _RUN_BYTES,
            least_bytes=_LEAST_RUN_BYTES,
            beside_bytes=_BESIDE,
            memory_bytes=memory_bytes,
        )
        self._zeros = 0
        self._targets: dict[bytes, list[Target]] = {}
        lengths: dict[bytes, int] = {}
        for number, (stream, _) in enumerate(jobs):
            offset = 0
            for chunk in stream.chunks:
                digest, length = chunk.digest, chunk.length
                if not digest:
                    self._zeros += length
                elif lengths.setdefault(digest, length) == length:
                    self._targets.setdefault(digest, []).append((number, offset))
                else:
                    raise _wrong_length(digest, length, lengths[digest])
                offset += length
            _check_length(stream, offset)
        # All at once, before the threads begin: looking up beside them would take turns with them at every row.
        places = store.locate(self._targets)
        for digest, place in places.items():
            if place.raw_length != lengths[digest]:
                raise _wrong_length(digest, lengths[digest], place.raw_length)
        self._runs = list(_runs(sorted(places.values()), self._targets, run_bytes, store))
        raw_bytes = sum(place.raw_length for place in places.values())
        self._shared = [sink for _, sink in jobs if isinstance(sink, SharedSink)]
        wide = len(self._shared) == len(jobs) and worth_it(raw_bytes, self._threads)
        self._processes = self._started() if wide else None

    def run(self, progress: Progress) -> None:
        """Write every stream to its sink. Every digest is verified before its bytes are written.

        `progress` advances by the streams' bytes, zeros included. The first error of any thread stops the others and is
        raised: what a sink raises, OperationCancelled, ObjectCorrupt naming pack and chunk. What has moved to another pack
        since it was looked up is found there.
        """
        with self._store.holding(self._targets):
            for stream, sink in self._jobs:
                if isinstance(sink, PreparedSink):
                    sink.prepare(stream.length)
            progress.advance(self._zeros)
            writes = [sink.write for _, sink in self._jobs]

            def mend(record: Record) -> None:
                # The store looks again, by itself, and names what is damaged.
                data = memoryview(bytearray(self._store.load(record.digest)))
                for number, at in record.targets:
                    writes[number](at, data)

            if self._processes is not None:
                self._processes.work(self._shared, progress, mend)
                return
            share_out(
                self._runs,
                lambda: RunWorker(self._store.read_run, writes, mend, progress.advance).work,
                min(self._threads, len(self._runs)),
            )

    def _started(self) -> UnpackProcesses | None:
        """Processes to share the runs out to, which begin to import what they need; None where they cannot be started."""
        try:
            return UnpackProcesses(self._runs, self._threads)
        except (commands.CommandFailed, OSError) as error:
            logger.warning("the snapshot is read by one process: %s", error)
            return None


def unpack(
    jobs: Sequence[tuple[Stream, Sink]],
    store: LocalStore,
    *,
    threads: int,
    progress: Progress,
    memory_bytes: int = 0,
) -> None:
    """Write every stream to its sink, as `Unpacking` does."""
    Unpacking(jobs, store, threads=threads, memory_bytes=memory_bytes).run(progress)


class StreamReader:
    """Reads a stream at any place, verifying what it reads; thread-safe. Keeps the chunks that it read last."""

    def __init__(self, stream: Stream, store: LocalStore) -> None:
        self._stream, self._store = stream, store
        self._ends = list(accumulate(chunk.length for chunk in stream.chunks))
        _check_length(stream, self._ends[-1] if self._ends else 0)
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`, fewer at the end. Raises ObjectCorrupt."""
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
                data = self._store.load(chunk.digest)
                self._kept[chunk.digest] = data
                if len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            return data


def read_stream(stream: Stream, store: LocalStore) -> bytes:
    """All bytes of a stream, for small ones. Raises ObjectCorrupt."""
    return StreamReader(stream, store).read(0, stream.length)


def _runs(
    places: Iterable[Location],
    targets: dict[bytes, list[Target]],
    run_bytes: int,
    store: LocalStore,
) -> Iterator[Run]:
    """What is to be read, as it lies on the disk, neighbours together."""
    pack, start, end = "", 0, 0
    records: list[Record] = []
    for place in places:
        place_end = place.offset + place.stored_length
        near = place.pack == pack and place.offset - end <= _RUN_GAP
        if records and not (near and place_end - start <= run_bytes):
            yield Run(str(store.path_of(pack)), start, end, records)
            records = []
        if not records:
            pack, start = place.pack, place.offset
        where, what = targets[place.digest], (place.offset, place.digest, *place[3:])
        records.append(Record(*what, where[:_SHARED]))
        end = place_end
        for first in range(_SHARED, len(where), _SHARED):
            # Enough to write for another thread, which decompresses it again.
            rest = Record(*what, where[first : first + _SHARED])
            yield Run(str(store.path_of(place.pack)), place.offset, place_end, [rest])
    if records:
        yield Run(str(store.path_of(pack)), start, end, records)


def _wrong_length(digest: bytes, told: int, found: int) -> ManifestInvalid:
    return ManifestInvalid(
        f"The snapshot's manifest says that chunk {digest.hex()[:16]} has {told} bytes; it has {found}."
    )


def _check_length(stream: Stream, length: int) -> None:
    if length != stream.length:
        raise ManifestInvalid(
            f"The chunks of {stream.name} have {length} bytes, the snapshot's manifest says {stream.length}."
        )
