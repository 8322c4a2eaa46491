"""Windows of a lane's memory, for where RAM is short: one after the other is copied and stored, or read and filled.

In a suspend nothing has left the process until all windows are stored, so that a failure needs no undo. A resume fills whole parts.

Covers: when windows are used, how memory is divided into them. Does not cover: the copies (`lane_copies.py`), the orders (`lane.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ...errors import CheckpointError
from ...host.processes import mem_available
from ...model import Manifest
from ..tree.launch import pids
from ..tree.tree import Tree
from .digests import Ranges
from .lane import LANE_FILES, Lane
from .lane_orders import Allocation, Library, Order

#: The bytes of a window, of which there is one at a time. A part has as many at most (MAX_PART_BYTES in lane.h).
WINDOW_BYTES = 1 << 30
#: What else needs RAM meanwhile: buffers of packing, the page-locked ones, and other programs.
_SPARE_BYTES = 2 << 30


class StoreWindow(Protocol):
    """A function that stores ranges of a stream of `length` bytes durably; files hold the ranges, one after the other."""

    def __call__(self, stream: str, paths: Sequence[Path], length: int, ranges: Ranges) -> None:
        """Store them. Raises what `pack` raises."""


#: Makes a file of the bytes of a stream between two offsets: (stream, begin, end, path of the file).
ReadStream = Callable[[str, int, int, Path], None]
#: The same for one stream.
_ReadWindow = Callable[[int, int, Path], None]


def is_short(length: int, pid: int | None = None) -> bool:
    """Return whether RAM is short for a copy of so many bytes."""
    return length > WINDOW_BYTES and length + _SPARE_BYTES > mem_available(pid)


def is_short_for(manifest: Manifest) -> bool:
    """Return whether RAM is short for all memory of a snapshot, GPU memory included."""
    lengths = [one.length for one in manifest.streams if one.name.startswith(("pages/", "gpu"))]
    return any(lane_bytes(manifest)) and is_short(sum(lengths))


def lane_bytes(manifest: Manifest) -> list[int]:
    """Return the bytes of the lanes' memory, by process."""
    names = [f"gpu{path}" for one in manifest.gpu for path in one.staging if is_lanes(path)]
    return [manifest.stream(name).length for name in names]


def is_lanes(path: str) -> bool:
    """Return whether the files of this path have a lane's memory, and not the driver's."""
    return path.startswith(LANE_FILES)


def spared_by_windows(lengths: Sequence[int]) -> int:
    """Return how much less RAM than for whole copies is needed with windows, for memory of these lengths."""
    return sum(max(0, length - WINDOW_BYTES) for length in lengths)


def spared_in_suspend(tree: Tree) -> int:
    """Return how much less RAM than GPU memory a suspend of the tree needs."""
    lengths = []
    for lane in (Lane(tree, pid) for pid in pids(tree)):
        with suppress(CheckpointError):
            lengths.append(lane.allocated_bytes() if lane.is_there else 0)
    return spared_by_windows(lengths)


def windows(ranges: Ranges) -> Iterator[Ranges]:
    """Divide ranges into windows."""
    window, left = Ranges(), WINDOW_BYTES
    for begin, end in ranges:
        at = begin
        while at < end:
            stop = min(end, at + left)
            window.append((at, stop))
            left -= stop - at
            at = stop
            if not left:
                yield window
                window, left = Ranges(), WINDOW_BYTES
    if window:
        yield window


def fill(read: _ReadWindow, library: Library, target: Path) -> None:
    """Give a process its memory, all of which is handed over, window by window. `target`: the path of a file for them."""
    offset = 0
    for first, count, length in groups(library.listed()):
        read(offset, offset + length, target)
        descriptor = os.open(target, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            library.order(Order.FILL, first, count, descriptors=[descriptor])
        finally:
            os.close(descriptor)
        offset += length
    target.unlink(missing_ok=True)


def groups(listed: Sequence[Allocation]) -> Iterator[tuple[int, int, int]]:
    """Divide parts, all of which are handed over, into windows: yield the number of the first, how many, and their bytes."""
    first = count = length = 0
    for number, one in enumerate(listed):
        if count and length + one.bytes > WINDOW_BYTES:
            yield first, count, length
            first, count, length = number, 0, 0
        count += 1
        length += one.bytes
    if count:
        yield first, count, length
