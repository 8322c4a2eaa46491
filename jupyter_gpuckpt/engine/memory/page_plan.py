"""The plan for the private pages of a tree: which of them we write into the tasks that CRIU holds, and which CRIU reads from its files.

We write nearly all of them (`stopped_pages.py`): that is faster, and takes no room on the disk. CRIU restores two kinds itself
(`filling.py`):
* pages that a process inherited from its parent and still shares with it copy-on-write. CRIU restores the parent's pages before
   it forks the child, and compares: equal pages stay shared. Written from outside, each process would get a copy of its own.
 * pages in areas that may not be written to, like the code of a just-in-time compiler: process_vm_writev refuses them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec

from ...wire.manifest_records import Manifest, Stream
from ..criu import images as criu_images
from ..criu import memory_images
from ..criu.memory_images import Area

_PROT_WRITE = 2
_PRIVATE, _ANONYMOUS, _GROWSDOWN, _HUGETLB = 0x02, 0x20, 0x100, 0x40000
#: The least bytes shared with a parent for which a child's pages are left to CRIU; with fewer the child gets copies.
_MIN_SHARED_BYTES = 1 << 20

#: The most areas that are added by splitting.
_MAX_ADDED_AREAS = 10_000

#: Start and end of a memory area.
AddressRange = tuple[int, int]


class Piece(msgspec.Struct, frozen=True):
    """A run of pages of a process, at `offset` of its stream and at `address` of its memory, all in bytes."""

    offset: int
    address: int
    length: int


class PagePlan:
    """A plan for the private pages of one process that are not in CRIU's images.

    `shared_bytes`: a lower bound for the number of their bytes that equal the parent's.
    """

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
        self._inherited: set[AddressRange] = set()

    @property
    def by_criu(self) -> list[Piece]:
        """Return the pages that CRIU restores."""
        return [piece for piece, area in self._pieces if self._is_by_criu(area)]

    @property
    def criu_bytes(self) -> int:
        """Return the number of bytes that CRIU restores."""
        return sum(piece.length for piece in self.by_criu)

    @property
    def by_us(self) -> list[Piece]:
        """Return the pages that we write into the task."""
        return [piece for piece, area in self._pieces if not self._is_by_criu(area)]

    def inherit(self, parent: PagePlan) -> None:
        """Leave to CRIU, in both processes, the areas that this one has inherited from its parent.

        CRIU compares page by page. To compare chunks would not do: one changed page changes a chunk of hundreds of equal pages.
        """
        common = self._common(parent)
        if (
            sum(piece.length for piece, area in self._pieces if _place(area) in common)
            < _MIN_SHARED_BYTES
        ):
            return
        self._inherited |= common
        parent._inherited |= common
        theirs = dict(parent._chunks(common))
        mine = self._chunks(common)
        self.shared_bytes = sum(chunk[1] for at, chunk in mine if theirs.get(at) == chunk)

    def _is_by_criu(self, area: Area) -> bool:
        return not area.protection & _PROT_WRITE or _place(area) in self._inherited

    def _split(self, images: Path) -> Iterator[tuple[Piece, Area]]:
        """Yield the lazy pages as pieces, each within one area."""
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

    def _common(self, parent: PagePlan) -> set[AddressRange]:
        """Return the areas that CRIU lets a child inherit (criu/mem.c, check_cow_vmas)."""
        if self._program != parent._program:
            return set()
        return self._inheritable() & parent._inheritable()

    def _inheritable(self) -> set[AddressRange]:
        return {_place(area) for _, area in self._pieces if _is_inheritable(area)}

    def _chunks(self, places: Collection[AddressRange]) -> Iterator[tuple[int, tuple[bytes, int]]]:
        """Yield the address, and digest and length, of each stored chunk that begins in these areas."""
        offset = 0
        for chunk in self.stream.chunks:
            piece, area = self._pieces[bisect_right(self._offsets, offset) - 1]
            if chunk.digest and _place(area) in places:
                yield piece.address + offset - piece.offset, (chunk.digest, chunk.length)
            offset += chunk.length


def _place(area: Area) -> AddressRange:
    return area.start, area.end


def _is_inheritable(area: Area) -> bool:
    return area.flags & (_PRIVATE | _ANONYMOUS | _GROWSDOWN) == _PRIVATE | _ANONYMOUS


@criu_images.strict
def align_areas(manifest: Manifest, images: Path) -> None:
    """Split memory areas in the images so that overlapping areas of forked processes begin and end at the same addresses.

    CRIU lets a child inherit only an area that its parent has with the same ends. Linux merges an area with a new neighbor in the
    parent but not in the child (mm/vma.c, is_mergeable_anon_vma), or the other way round, and one of them may have shrunk since.
    """
    for family in _families(manifest, images):
        splittable = [
            area for pid in family for area in memory_images.areas(images, pid) if _is_split(area)
        ]
        ends = sorted({end for area in splittable for end in _place(area)})
        added = sum(
            bisect_left(ends, area.end) - bisect_right(ends, area.start) for area in splittable
        )
        # A damaged image must not fill the memory. Without the edit, processes get copies of pages that they could share.
        if 0 < added <= _MAX_ADDED_AREAS:
            for pid in family:
                memory_images.split(images, pid, ends, _is_split)


def _families(manifest: Manifest, images: Path) -> Iterable[list[int]]:
    """Return groups of processes of one program that were forked from each other. A process without relatives is in no group."""
    parents = {process.pid: process.parent for process in manifest.processes if process.pages}
    programs = {pid: memory_images.program_id(images, pid) for pid in parents}
    families: dict[int, list[int]] = {}
    for pid in parents:
        first = pid
        for _ in parents:  # no more steps, because a damaged manifest may have a cycle
            if programs.get(parents[first]) != programs[first]:
                break
            first = parents[first]
        families.setdefault(first, []).append(pid)
    return [family for family in families.values() if len(family) > 1]


def _is_split(area: Area) -> bool:
    return _is_inheritable(area) and not area.is_special and not area.flags & _HUGETLB


@criu_images.strict
def plan(manifest: Manifest, images: Path) -> list[PagePlan]:
    """Return a plan for each process that has lazy pages, after `align_areas`. Raises ObjectCorrupt."""
    names = {process.pid: process.pages for process in manifest.processes if process.pages}
    lazy = {pid for pid in names if any(extent.lazy for extent in criu_images.pagemap(images, pid))}
    plans = {pid: PagePlan(images, pid, manifest.stream(names[pid])) for pid in sorted(lazy)}
    for process in manifest.processes:
        if process.pid in plans and process.parent in plans:
            plans[process.pid].inherit(plans[process.parent])
    return list(plans.values())
