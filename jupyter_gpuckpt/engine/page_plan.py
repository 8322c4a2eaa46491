"""Who puts which private pages of a tree in place: we, into the stopped tasks, or CRIU, out of its own files.

We write nearly all of them (`stopped_pages.py`): that is faster, and takes no room on the disk. CRIU gets (`eager_pages.py`)
 * what a process inherited from its parent and still shares with it copy-on-write. CRIU restores the parent's pages before it
   forks the child, and compares: what is equal stays shared. Written from outside, each process would get a copy of its own.
 * what lies in areas that may not be written to, like the code of a just-in-time compiler: process_vm_writev refuses it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ..model import Manifest, Stream
from . import criu_images, memory_images
from .memory_images import Area

_PROT_WRITE = 2
_PRIVATE, _ANONYMOUS, _GROWSDOWN = 0x02, 0x20, 0x100
#: A child that shares less with its parent gets copies.
_LEAST_SHARED = 1 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """Pages of a process: at `offset` of its stream, at `address` of its memory. All in bytes."""

    offset: int
    address: int
    length: int


class PagePlan:
    """The private pages of one process that CRIU left to us. `shared_bytes`: of them, those that it shares with its parent."""

    def __init__(self, images: Path, nspid: int, stream: Stream) -> None:
        self.nspid, self.stream, self.shared_bytes = nspid, stream, 0
        self._program = memory_images.program_id(images, nspid)
        self._areas = memory_images.areas(images, nspid)
        if any(one.end > other.start for one, other in pairwise(self._areas)):
            raise ValueError("memory areas overlap")
        self._pieces = list(self._split(images))
        self._offsets = [piece.offset for piece, _ in self._pieces]
        if sum(piece.length for piece, _ in self._pieces) != stream.length:
            raise ValueError(f"{stream.name} is not as long as the pages of process {nspid}")
        self._inherited: set[tuple[int, int]] = set()

    @property
    def by_criu(self) -> list[Piece]:
        """Those that CRIU puts in place."""
        return [piece for piece, area in self._pieces if self._is_by_criu(area)]

    @property
    def by_us(self) -> list[Piece]:
        """Those that are written into the stopped task."""
        return [piece for piece, area in self._pieces if not self._is_by_criu(area)]

    def inherit(self, parent: PagePlan) -> None:
        """Leave to CRIU, in both processes, what this one shares with its parent."""
        common = self._common(parent)
        if not common:
            return
        theirs = dict(parent._chunks(common))
        found: dict[tuple[int, int], int] = {}
        for (address, area), (digest, length) in self._chunks(common):
            if theirs.get((address, area)) == (digest, length):
                found[area] = found.get(area, 0) + length
        if (shared := sum(found.values())) >= _LEAST_SHARED:
            self.shared_bytes = shared
            self._inherited |= found.keys()
            parent._inherited |= found.keys()

    def _is_by_criu(self, area: Area) -> bool:
        return not area.protection & _PROT_WRITE or (area.start, area.end) in self._inherited

    def _split(self, images: Path) -> Iterator[tuple[Piece, Area]]:
        """Yield what CRIU left to us, no piece in more than one area."""
        starts = [area.start for area in self._areas]
        offset = 0
        for extent in criu_images.pagemap(images, self.nspid):
            if not extent.lazy:
                continue
            at, end = extent.address, extent.address + extent.length
            while at < end:
                area = self._areas[bisect_right(starts, at) - 1]
                last = min(end, area.end)
                if not area.start <= at < last:
                    raise ValueError(f"page {at:#x} lies in no memory area")
                yield Piece(offset, at, last - at), area
                offset, at = offset + last - at, last

    def _common(self, parent: PagePlan) -> set[tuple[int, int]]:
        """Return the areas that CRIU lets a child inherit (criu/mem.c, check_cow_vmas)."""
        if self._program != parent._program:
            return set()
        return self._inheritable() & parent._inheritable()

    def _inheritable(self) -> set[tuple[int, int]]:
        return {
            (area.start, area.end)
            for _, area in self._pieces
            if area.flags & (_PRIVATE | _ANONYMOUS | _GROWSDOWN) == _PRIVATE | _ANONYMOUS
        }

    def _chunks(
        self, areas: Collection[tuple[int, int]]
    ) -> Iterator[tuple[tuple[int, tuple[int, int]], tuple[bytes, int]]]:
        """Yield address, area, digest and length of the stored chunks that begin in these areas."""
        offset = 0
        for chunk in self.stream.chunks:
            piece, area = self._pieces[bisect_right(self._offsets, offset) - 1]
            if chunk.digest and (place := (area.start, area.end)) in areas:
                yield (piece.address + offset - piece.offset, place), (chunk.digest, chunk.length)
            offset += chunk.length


@criu_images.strict
def plan(manifest: Manifest, images: Path) -> list[PagePlan]:
    """Return a plan for each process that has pages which CRIU left to us. Raises ObjectCorrupt."""
    names = {process.pid: process.pages for process in manifest.processes if process.pages}
    lazy = {pid for pid in names if any(extent.lazy for extent in criu_images.pagemap(images, pid))}
    plans = {pid: PagePlan(images, pid, manifest.stream(names[pid])) for pid in sorted(lazy)}
    for process in manifest.processes:
        if process.pid in plans and process.parent in plans:
            plans[process.pid].inherit(plans[process.parent])
    return list(plans.values())
