"""Pages that CRIU does not see in a skeleton dump, because we list them ourselves.

CRIU pins every page of a task in pipes before it finds that the page server requests none. So the large private areas are hidden
from it (the preloaded preload.c answers its PAGEMAP_SCAN). We scan them and enter them into its pagemap images as lazy pages, as
CRIU would have done with anonymous memory. Neither the standstill nor the number of descriptors then grows with the memory. Pages
that a process changed in its private mapping of a file are hidden as well: a process that has loaded PyTorch has tens of thousands
of them, and an ordinary user's pipes may hold two pages each. See Documentation/admin-guide/mm/pagemap.rst, and man 2 PAGEMAP_SCAN.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from ...host import pagemap_scan, processes
from ...wire.manifest_records import SCRATCH
from . import images as criu_images
from . import memory_images
from .images import Extent

#: The file that lists the areas for CRIU, in the kernel's mount namespace, and the variable with its name.
LIST = f"{SCRATCH}/hidden"
VARIABLE = "GPUCKPT_HIDDEN"

#: The smallest area that is hidden; CRIU handles smaller ones.
_SMALLEST = 1 << 20
#: The most areas in the list (MAX_AREAS in preload.c).
_MAX_AREAS = 65536

Area = tuple[int, int]


class HiddenPages:
    """The hidden areas of one stopped tree; use it from the stop until the images are complete."""

    def __init__(self, pids: list[int]) -> None:
        self._areas = {pid: _hideable(pid) for pid in pids} if pagemap_scan.is_supported() else {}

    def write(self, path: Path) -> None:
        """List the areas for CRIU."""
        found = sorted(
            (processes.nspid(pid) or 0, start, end)
            for pid, areas in self._areas.items()
            for start, end in areas
        )
        path.write_bytes(b"".join(struct.pack("<3Q", *area) for area in found))

    def scan(self) -> dict[int, list[Extent]]:
        """Return the pages in the areas, by pid in the kernel's namespace. The tasks must be stopped."""
        return {
            processes.nspid(pid) or 0: list(_pages(pid, areas))
            for pid, areas in self._areas.items()
            if areas
        }


def reveal(images: Path, pages: dict[int, list[Extent]]) -> None:
    """Enter pages into CRIU's pagemap images, unless CRIU saw them itself."""
    for nspid, hidden in pages.items():
        seen = criu_images.pagemap(images, nspid)
        # An overlap means that CRIU listed the pages itself: it did not load the library, or scans in another way.
        if hidden and not _overlap(seen, hidden):
            memory_images.add_lazy(images, nspid, hidden)


def visible_bytes(pid: int) -> int:
    """Return an upper bound, in bytes, for the private memory that CRIU sees; mapped pages need not be present."""
    hidden = set(_hideable(pid)) if pagemap_scan.is_supported() else set()
    return sum(
        area.end - area.start
        for area in processes.maps(pid)
        if area.private and (area.start, area.end) not in hidden
    )


def _overlap(seen: list[Extent], hidden: list[Extent]) -> bool:
    extents = sorted((*seen, *hidden), key=lambda extent: extent.address)
    return any(one.address + one.length > other.address for one, other in pairwise(extents))


def _hideable(pid: int) -> list[Area]:
    """Return the large private areas; none if memory is locked, because a restore's mlock would fill it before our pages come."""
    if processes.status(pid).get("VmLck", "0 kB") != "0 kB":
        return []
    found = [
        (area.start, area.end)
        for area in processes.maps(pid)
        if area.perms[0] == "r"
        and area.private
        and (area.inode or not area.path or area.path == "[heap]" or area.path.startswith("[anon:"))
        and area.end - area.start >= _SMALLEST
    ]
    return found[: _MAX_AREAS // 64]


def _pages(pid: int, areas: list[Area]) -> Iterator[Extent]:
    """Yield the private pages in `areas`: in memory or swapped out; not a file's, not the zero page, not a guard page."""
    with Path(f"/proc/{pid}/pagemap").open("rb") as pagemap:
        for start, end in areas:
            for first, last in pagemap_scan.own_pages(pagemap.fileno(), start, end):
                yield Extent(first, last - first, lazy=True)
