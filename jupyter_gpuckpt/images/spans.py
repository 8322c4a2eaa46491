"""Spans: neighboring chunks in a pack that are read together, decompressed, verified and written to their targets.

Covers: the table of all spans of an operation, which several processes can share, and one thread's work on a span. Does not cover:
how the table is made (reading_order.py).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..linux.fresh_memory import Scratch
from ..store.codecs import DIGEST_BYTES, CodecError, Decompressor, digest_of

#: A chunk in a pack; `targets`: the number of its targets in the table, which has them in the same order.
RECORD = np.dtype(
    [
        ("offset", "u8"),
        ("digest", f"V{DIGEST_BYTES}"),
        ("stored_length", "u4"),
        ("raw_length", "u4"),
        ("codec", "u1"),
        ("targets", "u4"),
    ]
)
#: A target: `length` bytes from `start` of a chunk go to `offset` of the stream's sink (by its number).
TARGET = np.dtype([("sink", "u4"), ("offset", "u8"), ("start", "u4"), ("length", "u4")])
#: A span: its number in the table, the range from `start` to `end` of a pack, and the ranges of its records and of their targets.
SPAN = np.dtype(
    [
        ("number", "u4"),
        ("pack", "u4"),
        ("start", "u8"),
        ("end", "u8"),
        ("record", "u8"),
        ("records", "u8"),
        ("target", "u8"),
        ("targets", "u8"),
    ]
)

#: Rows of the two tables as Python tuples.
Target = tuple[int, int, int, int]
SpanRow = tuple[int, ...]
#: A sink's `write` method: (offset in the stream, bytes).
Write = Callable[[int, memoryview], None]

_Rows = NDArray[Any]


class Damaged(NamedTuple):
    """A chunk that is missing or damaged in its pack, and its targets."""

    digest: bytes
    targets: list[Target]


class SpanTable(NamedTuple):
    """The table of all spans, in the order in which they should be begun. `packs`: the packs' paths."""

    packs: list[str]
    spans: _Rows
    records: _Rows
    targets: _Rows

    def share(self) -> tuple[int, int]:
        """Return two descriptors for other processes: of records and targets (`shared_table`), and of the spans (`taken`)."""
        records = _in_memory(self.records, self.targets)
        try:
            return records, _in_memory(self.spans)
        except BaseException:
            os.close(records)
            raise


def shared_table(packs: list[str], records: int, descriptor: int) -> SpanTable:
    """Return the table, without its spans, from the file `descriptor`, which holds `records` records and the targets."""
    data = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) if records else b""
    targets = np.frombuffer(data, TARGET, offset=records * RECORD.itemsize)
    return SpanTable(packs, np.empty(0, SPAN), np.frombuffer(data, RECORD, records), targets)


def taken(descriptor: int) -> Iterator[SpanRow]:
    """Take spans from the file `descriptor`, which processes share, and yield them until none is left; each is taken once.

    Reads of one open file description are atomic and advance its offset (POSIX.1-2008 2.9.7; since Linux 3.14).
    """
    while row := os.read(descriptor, SPAN.itemsize):
        yield tuple(np.frombuffer(row, SPAN).tolist()[0])


def _in_memory(*parts: _Rows) -> int:
    """Return a descriptor of a memory file with this content, positioned at its beginning."""
    created = os.memfd_create("gpuckpt-spans")
    try:
        with open(created, "wb", closefd=False) as file:
            for part in parts:
                file.write(part.tobytes())
        # Reads of the memfd itself are not atomic: only open() asks for that (FMODE_ATOMIC_POS).
        return os.open(f"/proc/self/fd/{created}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(created)


class SpanReader:
    """A reader of spans for one thread, into reused memory. `fill(pack, start, buffer)` returns the number of bytes read."""

    def __init__(self, fill: Callable[[str, int, memoryview], int]) -> None:
        self._fill, self._memory = fill, Scratch()

    def read(self, pack: str, start: int, end: int) -> memoryview:
        """Return the bytes of a span, fewer if the pack ends before or is gone."""
        buffer = self._memory.get(end - start)
        return buffer[: self._fill(pack, start, buffer)]


class SpanWorker:
    """The worker of one thread. Many threads wait for the GIL, so the code per chunk is kept short.

    `read(pack, start, end)` returns these bytes as writable memory; `damaged` is called with chunks that are missing or damaged;
    `written` is called with a span's number when all of it is written, and how many bytes that were.
    """

    def __init__(
        self,
        table: SpanTable,
        read: Callable[[str, int, int], memoryview],
        writes: Sequence[Write],
        damaged: Callable[[Damaged], None],
        written: Callable[[int, int], None],
    ) -> None:
        self._table, self._read, self._writes = table, read, writes
        self._damaged, self._written = damaged, written
        self._unpacked, self._decompressor = Scratch(), Decompressor()

    def work(self, span: SpanRow) -> None:
        """Process one span, a row of the table."""
        number, pack, start, end, record, records, target, targets = span
        rows = self._table.records[record : record + records]
        places: list[Target] = self._table.targets[target : target + targets].tolist()
        buffer = self._read(self._table.packs[pack], start, end)
        unpacked = self._unpacked.get(int(rows["raw_length"].max()))
        unpack, writes, first, done = self._decompressor.unpack, self._writes, 0, 0
        for offset, digest, stored_length, raw_length, codec, count in rows.tolist():
            begin = offset - start
            last = first + count
            try:
                data = unpack(codec, buffer[begin : begin + stored_length], raw_length, unpacked)
                intact = digest_of(data) == digest
            except CodecError:
                intact = False
            if intact:
                for sink, at, skip, length in places[first:last]:
                    writes[sink](at, data[skip : skip + length])
                    done += length
            else:
                self._damaged(Damaged(bytes(digest), places[first:last]))
                done += sum(length for *_, length in places[first:last])
            first = last
        self._written(number, done)
