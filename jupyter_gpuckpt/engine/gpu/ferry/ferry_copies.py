"""Copies of a ferry's memory in a file: of all of it, or only of what the store lacks.

Digests that are not those of the memory would lose data. So samples of the memory are digested here, too, and where anything about
the digests is not right everything is copied.
"""

from __future__ import annotations

import logging
import os
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ....errors import CheckpointError
from ....host.processes import mem_available
from ....wire import stripes
from ...tree.tree import Tree
from ..driver import digests
from ..driver.digests import PIECE, EarlierMemory, MemoryTable, Ranges, Span, UnreliableDigestsError
from ..driver.gpu_staging import StagingFile, striped
from . import ferry_windows
from .ferry import Ferry
from .ferry_errors import no_memory
from .ferry_orders import Allocation, Range
from .ferry_windows import NO_NEEDS, RamNeeds, StoreWindow

logger = logging.getLogger(__name__)

#: The number of pieces that are digested here for comparison.
_SAMPLES = 8


class FerryCopy(NamedTuple):
    """What must be stored of a ferry's memory: these ranges; None: all of it. The store has the rest.

    `is_whole`: the file has all bytes. Otherwise it has the ranges, one after the other. `table`: the digests, to be stored, too.
    `is_stored`: the ranges were stored by windows, and there is no file.
    """

    ranges: Ranges | None
    is_whole: bool
    table: MemoryTable | None
    is_stored: bool = False


@dataclass(frozen=True)
class FerryCopying:
    """The copying of one process's memory. `handed_over`: init holds it; otherwise it is still the process's.

    `store_window`: stores memory window by window if RAM is short for the file. `needs`: what else needs RAM.
    """

    tree: Tree
    pid: int
    ferry: Ferry
    allocations: Sequence[Allocation]
    earlier: EarlierMemory | None
    handed_over: bool
    store_window: StoreWindow | None = None
    needs: RamNeeds = NO_NEEDS

    @property
    def stream(self) -> str:
        """The name of the stream that has the memory."""
        return f"gpu{self.ferry.file_path}"

    @property
    def length(self) -> int:
        """The bytes of the memory."""
        return sum(one.bytes for one in self.allocations)

    def copy(self, *, all_of_it: bool) -> tuple[StagingFile, FerryCopy]:
        """Make the file; return its record, with the length of the memory, and what must be stored. Raises FreezeFailed.

        `all_of_it`: the file must have all bytes, because they are freed on the GPU.
        """
        table, ranges = self._compare()
        if self.store_window is not None and not all_of_it and self._is_short(ranges):
            return self._store(self.store_window, table, ranges)
        if table is not None and ranges is not None and not all_of_it:
            try:
                return self._copy_ranges(table, ranges)
            except UnreliableDigestsError as error:
                self._warn(error)
                table = ranges = None
        return self._copy_all(table, ranges)

    def _compare(self) -> tuple[MemoryTable | None, Ranges | None]:
        """Return the digests, None if there are none, and the ranges that the store lacks."""
        if self.earlier is None:
            return None, None
        seed = self.earlier.seed(self.stream) or digests.new_seed()
        try:
            found = self.ferry.digests(
                self.allocations, digests.key_of(seed), handed_over=self.handed_over
            )
        except (CheckpointError, UnreliableDigestsError) as error:
            self._warn(error)
            return None, None
        spans = [Span(one.address, one.bytes) for one in self.allocations]
        table = MemoryTable(seed, spans, found)
        return table, self.earlier.lacking(self.stream, table)

    def _is_short(self, ranges: Ranges | None) -> bool:
        wanted = self._whole if ranges is None else ranges
        length = sum(end - begin for begin, end in wanted)
        return ferry_windows.is_short(length, self.needs, self.pid)

    @property
    def _whole(self) -> Ranges:
        return [(0, self.length)]

    def _store(
        self, store_window: StoreWindow, table: MemoryTable | None, ranges: Ranges | None
    ) -> tuple[StagingFile, FerryCopy]:
        """Store what the store lacks, window by window."""
        beside = self.needs.beside_bytes
        if table is not None:
            samples = _samples(len(table.digests), ranges or [])
            wanted = [(at * PIECE, (at + 1) * PIECE) for at in samples]
            with self._files(len(samples) * PIECE, beside) as (_, descriptors):
                self._read(descriptors, wanted)
                try:
                    _check(descriptors, 0, samples, table, consecutive=True)
                except UnreliableDigestsError as error:
                    self._warn(error)
                    table = ranges = None
        for window in ferry_windows.windows(self._whole if ranges is None else ranges):
            length = sum(end - begin for begin, end in window)
            with self._files(length, beside) as (file, descriptors):
                self._read(descriptors, window)
                paths = [self.tree.inside(path) for path in file.paths]
                store_window(self.stream, paths, self.length, window)
        self.ferry.remove_file()
        file = StagingFile(self.ferry.file_path, self.length)
        return file, FerryCopy(ranges, is_whole=False, table=table, is_stored=True)

    def _copy_ranges(self, table: MemoryTable, ranges: Ranges) -> tuple[StagingFile, FerryCopy]:
        samples = _samples(len(table.digests), ranges)
        wanted = [*ranges, *((at * PIECE, (at + 1) * PIECE) for at in samples)]
        length = sum(end - begin for begin, end in wanted)
        with self._files(length, self.needs.least_bytes) as (file, descriptors):
            self._read(descriptors, wanted)
            _check(descriptors, length - len(samples) * PIECE, samples, table, consecutive=True)
        file = file._replace(length=self.length)
        return file, FerryCopy(ranges, is_whole=False, table=table)

    def _copy_all(
        self, table: MemoryTable | None, ranges: Ranges | None
    ) -> tuple[StagingFile, FerryCopy]:
        length = self.length
        with self._files(length, self.needs.least_bytes) as (file, descriptors):
            self._read(descriptors, [(0, length)])
            if table is not None:
                try:
                    samples = _samples(len(table.digests), ranges or [])
                    _check(descriptors, 0, samples, table, consecutive=False)
                except UnreliableDigestsError as error:
                    self._warn(error)
                    table = ranges = None
        return file, FerryCopy(ranges, is_whole=True, table=table)

    @contextmanager
    def _files(self, length: int, beside: int) -> Iterator[tuple[StagingFile, list[int]]]:
        """Replace the process's files by new ones of `length` bytes in all; yield their record and descriptors.

        `beside`: how many bytes must be free in addition. Raises FreezeFailed.
        """
        self.ferry.remove_file()
        # The files take memory only when they are written, where Linux may end the kernel for lack of it.
        if length + beside > (available := mem_available(self.pid)):
            raise no_memory(
                self.pid,
                f"{length} bytes are needed, and {beside} for the rest; {available} are free",
            )
        file = StagingFile(self.ferry.file_path, length, stripes.files_for(length))
        with ExitStack() as made:
            try:
                descriptors = made.enter_context(striped(self.tree, self.pid, file))
            except OSError as error:
                raise no_memory(self.pid, str(error)) from error
            yield file, descriptors

    def _read(self, files: Sequence[int], wanted: Ranges) -> None:
        ranges = _by_part(self.allocations, wanted)
        if self.handed_over:
            self.ferry.copy_handed_over(self.allocations, files, ranges)
        else:
            self.ferry.copy_out(files, ranges)

    def _warn(self, error: Exception) -> None:
        logger.warning(
            "All GPU memory of process %d is copied, because its digests cannot be used: %s%s",
            self.pid,
            error,
            f" ({error.details})" if isinstance(error, CheckpointError) else "",
        )


def _samples(pieces: int, ranges: Ranges) -> list[int]:
    """Choose pieces, of those that are not in the ranges if there are any."""
    free = np.ones(pieces, np.bool_)
    for begin, end in ranges:
        free[begin // PIECE : -(-end // PIECE)] = False
    others = np.flatnonzero(free)
    return sorted(others[random.sample(range(len(others)), min(_SAMPLES, len(others)))].tolist())


def _check(
    files: Sequence[int],
    offset: int,
    samples: Sequence[int],
    table: MemoryTable,
    *,
    consecutive: bool,
) -> None:
    """Compare samples with their digests. Raises UnreliableDigestsError.

    `consecutive`: the files have the samples one after the other from the offset; otherwise they have all of the memory from there.
    """
    key = digests.key_of(table.seed)
    for number, piece in enumerate(samples):
        at = offset + (number if consecutive else piece) * PIECE
        found = (
            os.pread(files[part.file], part.length, part.offset)
            for part in stripes.parts(at, PIECE, len(files))
        )
        digests.check(b"".join(found), table.digests[piece], key)


def _by_part(allocations: Sequence[Allocation], wanted: Ranges) -> list[Range]:
    """Return the ranges of the memory as ranges of its parts."""
    ends, end = [], 0
    for one in allocations:
        end += one.bytes
        ends.append(end)
    found = []
    for begin, limit in wanted:
        part, at = bisect_right(ends, begin), begin
        while at < limit:
            start = ends[part] - allocations[part].bytes
            stop = min(limit, ends[part])
            found.append(Range(part, at - start, stop - at))
            at, part = stop, part + 1
    return found
