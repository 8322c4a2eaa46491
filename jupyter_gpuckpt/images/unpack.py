"""From chunks in a store back to bytes.

Covers: reading packs in order, decompressing and verifying in parallel, reading a stream at any place. Does not cover: where
the bytes go (`Sink`; sinks.py has files). See also: pack.py, the way there.
"""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol, runtime_checkable

from ..errors import ManifestInvalid
from ..model import Chunk, Stream
from ..progress import Progress
from ..store.catalog import Location
from ..store.codecs import RAW, CodecError, decompress, digest_of
from ..store.local import LocalStore
from .sinks import FileSink
from .workers import Scratch, share_out

__all__ = ["FileSink", "PreparedSink", "Sink", "StreamReader", "read_stream", "unpack"]

# Records that lie this close together are read in one go, up to so many bytes.
_RUN_GAP = 256 << 10
_RUN_BYTES = 4 << 20
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


class _Target(NamedTuple):
    sink: Sink
    offset: int
    length: int


class _Run(NamedTuple):
    """Neighbours in a pack, and where each of them goes."""

    pack: str
    start: int
    end: int
    places: list[tuple[Location, list[_Target]]]


def unpack(
    jobs: Sequence[tuple[Stream, Sink]], store: LocalStore, *, threads: int, progress: Progress
) -> None:
    """Write every stream to its sink. Every digest is verified before its bytes are written.

    `progress` advances by the streams' bytes, zeros included. The first error of any thread stops the others and is raised:
    what a sink raises, OperationCancelled, ObjectCorrupt naming pack and chunk, ManifestInvalid.
    """
    targets: dict[bytes, list[_Target]] = {}
    zeros = 0
    for stream, sink in jobs:
        offset = 0
        for chunk in stream.chunks:
            if chunk.digest:
                target = _Target(sink, offset, chunk.length)
                targets.setdefault(chunk.digest, []).append(target)
            else:
                zeros += chunk.length
            offset += chunk.length
        _check_length(stream, offset)

    def make_worker() -> Callable[[_Run], None]:
        read, unpacked = Scratch(), Scratch()

        def work(run: _Run) -> None:
            buffer = read.get(run.end - run.start)
            got = store.read_run(run.pack, run.start, buffer)
            count = 0
            for place, targets in run.places:
                begin = place.offset - run.start
                payload = buffer[begin : min(begin + place.stored_length, got)]
                data = _checked(store, place, payload, unpacked.get(place.raw_length))
                for target in targets:
                    if target.length != len(data):
                        raise ManifestInvalid(
                            f"The snapshot's manifest says that chunk {place.digest.hex()[:16]} "
                            f"has {target.length} bytes; it has {len(data)}."
                        )
                    target.sink.write(target.offset, data)
                    count += len(data)
            progress.advance(count)

        return work

    with store.holding(targets):
        # All at once, before the threads begin: looking up beside them would take turns with them at every row.
        runs = list(_runs(targets, store))
        for stream, sink in jobs:
            if isinstance(sink, PreparedSink):
                sink.prepare(stream.length)
        progress.advance(zeros)
        share_out(runs, make_worker, min(threads, len(runs)))


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


def _runs(targets: dict[bytes, list[_Target]], store: LocalStore) -> Iterator[_Run]:
    """What is to be read, as it lies on the disk, neighbours together."""
    pack, start, end = "", 0, 0
    run: list[tuple[Location, list[_Target]]] = []
    for place in sorted(store.locate(targets).values()):
        place_end = place.offset + place.stored_length
        near = place.pack == pack and place.offset - end <= _RUN_GAP
        if run and not (near and place_end - start <= _RUN_BYTES):
            yield _Run(pack, start, end, run)
            run = []
        if not run:
            pack, start = place.pack, place.offset
        where = targets[place.digest]
        run.append((place, where[:_SHARED]))
        end = place_end
        for first in range(_SHARED, len(where), _SHARED):
            # Enough to write for another thread, which decompresses it again.
            rest = [(place, where[first : first + _SHARED])]
            yield _Run(place.pack, place.offset, place_end, rest)
    if run:
        yield _Run(pack, start, end, run)


def _checked(
    store: LocalStore, place: Location, payload: memoryview, into: memoryview
) -> memoryview:
    """The chunk's bytes, verified: in `payload` itself where it is stored as it is, else in `into`."""
    try:
        data = payload
        if place.codec != RAW:
            data = decompress(place.codec, payload, place.raw_length, into)
        if digest_of(data) == place.digest:
            return data
    except CodecError:
        pass
    # The store looks again, by itself, and names what is damaged.
    return memoryview(bytearray(store.load(place.digest)))


def _check_length(stream: Stream, length: int) -> None:
    if length != stream.length:
        raise ManifestInvalid(
            f"The chunks of {stream.name} have {length} bytes, the snapshot's manifest says {stream.length}."
        )
