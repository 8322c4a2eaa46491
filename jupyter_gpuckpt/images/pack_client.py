"""The caller's side of a pack worker: the worker reads, cuts and compresses segments; a thread here queries the store and writes.

Covers: requesting the worker, the messages, the caller's side of the exchange. Does not cover: the worker's side (pack_worker.py),
starting workers (worker_processes.py).

On 16 cores 16 threads of one process store 8 GB in 9 s and mostly wait for the GIL, hence the processes. Raw and compressed bytes
lie in memory that both processes map, so nothing is copied between them.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

import msgspec

from ..errors import CheckpointError, ErrorRecord, error_from
from ..store.writer import PackWriter, Record
from ..wire.manifest_records import Chunk
from .chunking import MAX_PAGES, PAGE
from .composing import Earlier, Offer
from .segments import LOOK_AHEAD, Segment
from .worker_messages import receive, send, send_with_descriptors
from .worker_processes import fork

#: The compressed bytes of one `Payloads`, and the number of places for them: one is filled while another is written.
HANDED_BYTES = 4 << 20
PLACES = 2
#: The size of a place: those bytes, and one chunk that exceeds them.
PLACE_BYTES = HANDED_BYTES + MAX_PAGES * PAGE


class PackTask(msgspec.Struct, frozen=True, tag=True):
    """The first message to a worker: factory and data of each source by its number, and the largest length of a segment.

    The descriptor of the shared memory follows. That memory holds a segment with its look-ahead, then the places.
    """

    sources: dict[int, tuple[str, bytes]]
    segment_bytes: int


class Part(msgspec.Struct, frozen=True):
    """A request to pack one segment; each segment is one such message."""

    number: int
    start: int
    end: int
    first: int
    limit: int
    chunk_pages: int


class ChunksToCompress(msgspec.Struct, frozen=True):
    """The answer to `Cut`: the chunks to be compressed, and the stored chunks of which they may be composed."""

    digests: list[bytes]
    offer: Offer


class Written(msgspec.Struct, frozen=True):
    """The answer to `Payloads`: their place may be reused."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The worker's first message: it can read all sources."""


class Cut(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Part`: a segment's chunks, and the offset in the source where they begin."""

    start: int
    chunks: list[Chunk]


class Payload(msgspec.Struct, frozen=True, array_like=True):
    """A compressed chunk: `length` bytes at `offset` of the shared memory.

    If `composed` is set, the bytes are those of the composed chunk that no stored chunk has; there may be none.
    """

    digest: bytes
    codec: int
    raw_length: int
    offset: int
    length: int
    composed: Chunk | None = None


class Payloads(msgspec.Struct, frozen=True, tag=True):
    """A message with chunks to be written, and whether they are the segment's last."""

    payloads: list[Payload]
    last: bool


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The worker's last message after an error."""

    error: ErrorRecord | None = None
    errno: int = 0


_Answer = TypeVar("_Answer", Ready, Cut, Payloads)

#: `Predecessor.look_up` for one stream: (offset, chunks that follow each other from there, digests of unknown ones).
LookUp = Callable[[int, Sequence[Chunk], Sequence[bytes]], Earlier]


class Stored(NamedTuple):
    """The result of storing a segment. `composed`: its composed chunks, by digest."""

    start: int
    chunks: list[Chunk]
    composed: dict[bytes, Chunk]
    new_bytes: int


class PackClient:
    """The connection to one thread's worker process. `sources`: the result of `SharedSource.share` of each source, by its number.

    The constructor raises CommandFailed, OSError or CheckpointError if a worker cannot do the work.
    """

    def __init__(self, sources: dict[int, tuple[str, bytes]], segment_bytes: int) -> None:
        length = segment_bytes + LOOK_AHEAD + PLACES * PLACE_BYTES
        descriptor = os.memfd_create("gpuckpt-segment", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, length)
            self._memory = memoryview(mmap.mmap(descriptor, length))
            self._socket: socket.socket = fork()
            try:
                send_with_descriptors(self._socket, PackTask(sources, segment_bytes), [descriptor])
                self._receive(Ready)
            except BaseException:
                self.close()
                raise
        finally:
            os.close(descriptor)

    def store(self, segment: Segment, writer: PackWriter, look_up: LookUp) -> Stored:
        """Store a segment. Raises the errors of reading and compressing in the worker, and those of the writer."""
        self._send(Part(*segment))
        found = self._receive(Cut)
        digests = dict.fromkeys(chunk.digest for chunk in found.chunks if chunk.digest)
        stored = writer.known(digests)
        unknown = [digest for digest in digests if digest not in stored]
        earlier = look_up(found.start, found.chunks, unknown)
        composed = earlier.composed
        wanted = [digest for digest in unknown if digest not in composed]
        self._send(ChunksToCompress(wanted, earlier.offer))
        new_bytes, left = 0, bool(wanted)
        while left:
            handed = self._receive(Payloads)
            records = []
            for part in handed.payloads:
                if part.composed is not None:
                    composed[part.composed.digest] = part.composed
                if part.digest:
                    payload = self._memory[part.offset : part.offset + part.length]
                    records.append(Record(part.digest, payload, part.raw_length, part.codec))
            new_bytes += writer.append_all(records)
            self._send(Written())
            left = not handed.last
        return Stored(found.start, found.chunks, composed, new_bytes)

    def close(self) -> None:
        """Stop the worker, whatever it is doing."""
        self._socket.close()

    def _send(self, message: msgspec.Struct) -> None:
        # A worker that has exited may have sent `Failed` before; `_receive` reads it.
        with suppress(ConnectionError):
            send(self._socket, message)

    def _receive(self, kind: type[_Answer]) -> _Answer:
        answer: msgspec.Struct | None = None
        with suppress(ConnectionError):
            answer = receive(self._socket, kind, Failed)
        if isinstance(answer, Failed):
            if answer.error is not None:
                raise error_from(answer.error)
            raise OSError(answer.errno, os.strerror(answer.errno))
        if not isinstance(answer, kind):
            raise CheckpointError(
                "A process that compresses the snapshot has ended.",
                hint="Look whether memory is short, then try again.",
            )
        return answer
