"""Windows of a ferry's memory, used when RAM is short: each is copied and stored, or read and filled, before the next one.

In a suspend all memory stays in the process until all windows are stored, so that a failure needs no undo. A resume fills whole parts.

Covers: when windows are used, how a suspend divides memory into them. Does not cover: the copies (`ferry_copies.py`), the windows of a
resume (`ferry_fills.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from ....errors import CheckpointError
from ....host import gpu
from ....host.processes import mem_available
from ....wire.manifest_records import Manifest
from ...tree.launch import pids
from ...tree.tree import Tree
from ..driver.digests import Ranges
from .ferry import FERRY_FILES, Ferry
from .ferry_room import PART_BYTES, fits_by_parts, free_room

#: The bytes of a window, of which there is one at a time. Whole parts are filled, so it has room for the largest.
WINDOW_BYTES = PART_BYTES
#: What else needs RAM meanwhile: buffers of packing or unpacking, the page-locked ones, and other programs.
_SPARE_BYTES = 2 << 30


class RamNeeds(NamedTuple):
    """The RAM that a freeze needs. `gpu_bytes`: for copies of all GPU memory, of ferries or not; `beside_bytes`: for everything else."""

    beside_bytes: int = 0
    gpu_bytes: int = 0

    def beside(self, copied_bytes: int) -> RamNeeds:
        """Return the needs without `copied_bytes` of GPU memory, which are copied already or next."""
        return self._replace(gpu_bytes=max(0, self.gpu_bytes - copied_bytes))

    @property
    def most_bytes(self) -> int:
        """The bytes needed if no windows are used."""
        return self.beside_bytes + self.gpu_bytes

    @property
    def least_bytes(self) -> int:
        """The bytes needed if windows are used wherever they help."""
        return self.most_bytes - spared([self.gpu_bytes])


#: No known needs, as for parking.
NO_NEEDS = RamNeeds()


class StoreWindow(Protocol):
    """A function that stores ranges of a stream of `length` bytes; files hold the ranges, one after the other.

    The files may be removed when it returns. The bytes are durable before the snapshot is published.
    """

    def __call__(self, stream: str, paths: Sequence[Path], length: int, ranges: Ranges) -> None:
        """Store the ranges. Raises what `pack` raises."""


def is_short(length: int, needs: RamNeeds, pid: int) -> bool:
    """Return whether RAM is short for a copy of so many bytes of a process's memory, beside what else is needed."""
    return length > 0 and length + needs.most_bytes + _SPARE_BYTES > mem_available(pid)


def is_short_for(manifest: Manifest, shared_bytes: int) -> bool:
    """Return whether RAM is short for all memory of a snapshot.

    `shared_bytes`: how much of it is in the streams of several processes and in memory only once.
    """
    lengths = [one.length for one in manifest.streams if one.name.startswith(("pages/", "gpu"))]
    needed = sum(lengths) - shared_bytes + _SPARE_BYTES
    return any(ferry_bytes(manifest)) and needed > mem_available()


def ferry_bytes(manifest: Manifest) -> list[int]:
    """Return the bytes of the ferries' memory, by process."""
    names = [f"gpu{path}" for one in manifest.gpu for path in one.staging if is_ferries(path)]
    return [manifest.stream(name).length for name in names]


def is_ferries(path: str) -> bool:
    """Return whether the files of this path have a ferry's memory, and not the driver's."""
    return path.startswith(FERRY_FILES)


def spared(lengths: Sequence[int]) -> int:
    """Return the bytes of RAM that windows save, compared with whole copies of these lengths; one window of each is in RAM at a time.

    The bytes that windows need in addition (`_SPARE_BYTES`) are subtracted.
    """
    return max(0, sum(max(0, length - WINDOW_BYTES) for length in lengths) - _SPARE_BYTES)


def usable_bytes(tree: Tree) -> int:
    """Return how many bytes of the ferries' memory a suspend can store window by window, one window at a time.

    It cannot where the GPU has no room to give the memory back: then all of it must be in RAM, as that of a parked process is already.
    """
    found = 0
    for pid in pids(tree):
        ferry = Ferry(tree, pid)
        with suppress(CheckpointError):
            if (
                ferry.is_there
                and not ferry.status().closed
                and fits_by_parts(free_room(pid, gpu.used_by(pid)))
            ):
                found += ferry.allocated_bytes()
    return found


def windows(ranges: Ranges) -> Iterator[Ranges]:
    """Yield the windows into which ranges are divided, each of at most `WINDOW_BYTES`."""
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
