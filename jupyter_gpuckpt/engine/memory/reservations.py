"""The memory that a restore reserves (vm.overcommit_memory), which is more than what the saved processes had reserved.

CRIU maps memory that a process inherited from its parent, or that has pages, writable at first, and moves it to its place. So Linux
counts all of it, also addresses that the program has only reserved (PROT_NONE). It may then refuse one area that is larger than the
machine's memory, although the program has it: the program mapped it without rights, or piece by piece.
See Linux: Documentation/mm/overcommit-accounting.rst, and criu/mem.c, premap_private_vma.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ...host.overcommit import Overcommit
from ..criu import images as criu_images
from ..criu import memory_images
from ..criu.memory_images import Area

_PROT_WRITE = 2
_SHARED, _PRIVATE, _ANONYMOUS, _HUGETLB = 0x01, 0x02, 0x20, 0x40000

#: Start and end of a memory area.
_Place = tuple[int, int]


@criu_images.strict
def enter(images: Path, limits: Overcommit) -> None:
    """Edit the images so that nothing is reserved for areas that Linux would refuse here, each by itself."""
    largest = limits.area_bytes
    if largest is None:
        return

    def is_refused(area: Area) -> bool:
        return _is_counted(area) and area.end - area.start >= largest

    for pid in _pids(images):
        if any(map(is_refused, memory_images.areas(images, pid))):
            memory_images.reserve_nothing(images, pid, is_refused)


@criu_images.strict
def shortage(images: Path, limits: Overcommit, *, running: bool = False) -> str:
    """Return a sentence if Linux, which counts exactly here, would refuse a restore; else an empty text.

    `running`: the processes themselves still run, and what they have reserved will be free.
    """
    if limits.free_bytes is None:
        return ""
    needed, held = reserved_bytes(images)
    free = max(0, limits.free_bytes + (held if running else 0))
    if needed <= free:
        return ""
    return (
        f"{needed >> 20} MB of memory must be reserved to bring the kernel back, {free >> 20} MB can be"
        " (vm.overcommit_memory is 2)."
    )


def reserved_bytes(images: Path) -> tuple[int, int]:
    """Return how much CRIU reserves at most, and how much the saved processes had reserved at least."""
    parents = {process.pid: process.parent for process in criu_images.processes(images)}
    areas = {pid: memory_images.areas(images, pid) for pid in _pids(images)}
    counted = {pid: {_place(area) for area in areas[pid] if _is_counted(area)} for pid in areas}
    inherited = {
        pid: counted[pid] & counted.get(parents.get(pid, 0), set[_Place]()) for pid in areas
    }
    movable = {pid: set(inherited[pid]) for pid in areas}
    for pid in areas:
        if inherited[pid]:
            movable[parents[pid]] |= inherited[pid]
    needed = held = largest = 0
    for pid, own in areas.items():
        paged = _places_with_pages(images, pid, own)
        for area in own:
            place = _place(area)
            length = area.end - area.start
            if area.flags & _SHARED:
                continue
            if place in counted[pid]:
                is_writable = bool(area.protection & _PROT_WRITE)
                needed += length if is_writable or place in movable[pid] or place in paged else 0
                held += length if is_writable else 0
            if place in movable[pid]:
                largest = max(largest, length)
        # A forked process first has all that its parent has, also what is not its own.
        parent = movable.get(parents.get(pid, 0), set())
        needed += _length(parent - inherited[pid])
    shared = {
        _place(area)
        for own in areas.values()
        for area in own
        if area.flags & _SHARED and area.flags & _ANONYMOUS
    }
    # Linux counts an area twice while it is moved.
    return needed + largest + _length(shared), held + _length(shared)


def _places_with_pages(images: Path, pid: int, areas: Collection[Area]) -> set[_Place]:
    """Return the areas in which pages of the process are. Both are in the order of addresses."""
    found = set[_Place]()
    extents = iter(criu_images.pagemap(images, pid))
    extent = next(extents, None)
    for area in areas:
        while extent is not None and extent.address + extent.length <= area.start:
            extent = next(extents, None)
        if extent is not None and extent.address < area.end:
            found.add(_place(area))
    return found


def _is_counted(area: Area) -> bool:
    return not area.is_special and area.flags & (_PRIVATE | _HUGETLB) == _PRIVATE


def _place(area: Area) -> _Place:
    return area.start, area.end


def _length(places: Collection[_Place]) -> int:
    return sum(end - start for start, end in places)


def _pids(images: Path) -> list[int]:
    """Return the processes that have memory; zombies have none."""
    return sorted(int(path.stem.removeprefix("mm-")) for path in images.glob("mm-*.img"))
