"""Runs of records in packs: read in one go, decompressed, verified and written to where their chunks belong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..store.codecs import CodecError, Decompressor, digest_of
from ..store.scratch import Scratch

#: The number of a stream's sink, and the offset at which a chunk goes there.
Target = tuple[int, int]
#: How a sink takes bytes: at this offset of the stream.
Write = Callable[[int, memoryview], None]


class Record(NamedTuple):
    """A chunk in a pack, and where it goes."""

    offset: int
    digest: bytes
    stored_length: int
    raw_length: int
    codec: int
    targets: list[Target]


class Run(NamedTuple):
    """Neighbours in a pack, from `start` to `end`."""

    pack: str
    start: int
    end: int
    records: list[Record]


class RunWorker:
    """One thread's part. With many threads Python's lock is what they wait for, so what is done for every chunk is little.

    `read(pack, start, buffer)` fills a buffer and says how far; `damaged` is given records that are not what they should be;
    `advance` is told how many bytes were written.
    """

    def __init__(
        self,
        read: Callable[[str, int, memoryview], int],
        writes: Sequence[Write],
        damaged: Callable[[Record], None],
        advance: Callable[[int], None],
    ) -> None:
        self._from_pack, self._writes = read, writes
        self._damaged, self._advance = damaged, advance
        self._read, self._unpacked = Scratch(), Scratch()
        self._decompressor = Decompressor()

    def work(self, run: Run) -> None:
        """Do one run."""
        _, start, end, records = run
        buffer = self._read.get(end - start)
        buffer = buffer[: self._from_pack(run.pack, start, buffer)]
        target = self._unpacked.get(max(record.raw_length for record in records))
        unpack, writes, count = self._decompressor.unpack, self._writes, 0
        for record in records:
            offset, digest, stored_length, raw_length, codec, targets = record
            begin = offset - start
            count += raw_length * len(targets)
            try:
                data = unpack(codec, buffer[begin : begin + stored_length], raw_length, target)
                intact = digest_of(data) == digest
            except CodecError:
                intact = False
            if intact:
                for number, at in targets:
                    writes[number](at, data)
            else:
                self._damaged(record)
        self._advance(count)
