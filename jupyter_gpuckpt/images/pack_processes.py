"""Segments that another process reads, cuts and compresses, while a thread here asks the store and writes.

Covers: asking for such a process, and the thread's side of the conversation. Does not cover: the process's side
(pack_process.py), processes as such (worker_processes.py).

On 16 cores 16 threads of one process store 8 GB in 9 s, and mostly wait for each other. What the process has read and compressed
lies in memory that both have, so nothing is copied between them.
"""

from __future__ import annotations

import mmap
import os
import socket
from contextlib import suppress
from typing import TypeVar

import msgspec

from ..errors import CheckpointError, ErrorRecord, error_from
from ..model import Chunk
from ..store.writer import PackWriter, Record
from .chunking import MAX_PAGES, PAGE
from .segments import LOOK_AHEAD, Segment
from .worker_processes import fork, hear, say, tell

#: Compressed bytes that are handed over in one go, and how many such places there are: one is filled while another is written.
HANDED_BYTES = 4 << 20
PLACES = 2
#: A place, for as many bytes and the chunk that goes beyond.
PLACE_BYTES = HANDED_BYTES + MAX_PAGES * PAGE


class PackTask(msgspec.Struct, frozen=True, tag=True):
    """What a process is told first: builder and data of each source by its number, and how long a segment may be. The descriptor
    of the memory follows: a segment and what is read beyond it, then the places."""

    sources: dict[int, tuple[str, bytes]]
    segment_bytes: int


class Part(msgspec.Struct, frozen=True):
    """What it is told then, again and again: a segment."""

    number: int
    start: int
    end: int


class Wanted(msgspec.Struct, frozen=True):
    """The answer to `Cut`: the chunks to be compressed."""

    digests: list[bytes]


class Written(msgspec.Struct, frozen=True):
    """The answer to `Payloads`: their place is free again."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """What it says first: it can read all sources."""


class Cut(msgspec.Struct, frozen=True, tag=True):
    """A segment's chunks, and where in the source they begin."""

    start: int
    chunks: list[Chunk]


class Payload(msgspec.Struct, frozen=True, array_like=True):
    """A compressed chunk: `length` bytes at `offset` of the memory."""

    digest: bytes
    codec: int
    raw_length: int
    offset: int
    length: int


class Payloads(msgspec.Struct, frozen=True, tag=True):
    """Chunks to be written; whether they are the segment's last."""

    payloads: list[Payload]
    last: bool


class Failed(msgspec.Struct, frozen=True, tag=True):
    """What went wrong there; its last word."""

    error: ErrorRecord | None = None
    errno: int = 0


_Answer = TypeVar("_Answer", Ready, Cut, Payloads)


class PackProcess:
    """A process for one thread. `sources`: `SharedSource.share` of each by its number.

    Making it raises CommandFailed, OSError and CheckpointError where it cannot do the work.
    """

    def __init__(self, sources: dict[int, tuple[str, bytes]], segment_bytes: int) -> None:
        length = segment_bytes + LOOK_AHEAD + PLACES * PLACE_BYTES
        descriptor = os.memfd_create("gpuckpt-segment", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, length)
            self._memory = memoryview(mmap.mmap(descriptor, length))
            self._socket: socket.socket = fork()
            try:
                tell(self._socket, PackTask(sources, segment_bytes), [descriptor])
                self._hear(Ready)
            except BaseException:
                self.close()
                raise
        finally:
            os.close(descriptor)

    def store(self, segment: Segment, writer: PackWriter) -> tuple[Cut, dict[bytes, int], int]:
        """Store a segment: its chunks, what they take in the store, and what of this is new.

        Raises what reading or compressing raised there, and what the writer raises.
        """
        self._say(Part(*segment))
        found = self._hear(Cut)
        digests = dict.fromkeys(chunk.digest for chunk in found.chunks if chunk.digest)
        stored = writer.known(digests)
        wanted = [digest for digest in digests if digest not in stored]
        self._say(Wanted(wanted))
        new_bytes, left = 0, bool(wanted)
        while left:
            handed = self._hear(Payloads)
            records = []
            for part in handed.payloads:
                payload = self._memory[part.offset : part.offset + part.length]
                records.append(Record(part.digest, payload, part.raw_length, part.codec))
                stored[part.digest] = part.length
            new_bytes += writer.append_all(records)
            self._say(Written())
            left = not handed.last
        return found, stored, new_bytes

    def close(self) -> None:
        """Let it end, whatever it is at."""
        self._socket.close()

    def _say(self, message: msgspec.Struct) -> None:
        # Where nobody listens any more there may be a last word of theirs, which says why.
        with suppress(ConnectionError):
            say(self._socket, message)

    def _hear(self, kind: type[_Answer]) -> _Answer:
        answer: msgspec.Struct | None = None
        with suppress(ConnectionError):
            answer = hear(self._socket, kind, Failed)
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
