"""The huge pages (hugetlb) that a restore needs. Linux gives them from a pool that an administrator sets aside, not from free memory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ...errors import HostIncompatible
from ...wire.plurals import counted
from ..criu import memory_images

_POOLS = Path("/sys/kernel/mm/hugepages")


def require(images: Path) -> None:
    """Raise HostIncompatible if the pools have fewer free pages than the processes need."""
    for size, length in memory_images.huge_bytes(images).items():
        pool, pages = _POOLS / f"hugepages-{size >> 10}kB", length // size
        free = _free(pool)
        if free is None or pages <= free:
            continue
        raise HostIncompatible(
            f"The kernel needs {counted(pages, 'huge page')} of {size >> 20} MB; {free} can be had here.",
            hint=f"End programs that use huge pages, or let an administrator write a number to {pool}/nr_hugepages that is higher by"
            f" {pages - free}. The snapshot is untouched.",
        )


def _free(pool: Path) -> int | None:
    """Return how many pages a pool can give; None: it is not known, because Linux's files about pools are hidden."""
    if not _POOLS.is_dir():
        return None
    found = dict.fromkeys(("free", "resv", "nr_overcommit", "surplus"), 0)
    with suppress(FileNotFoundError):  # this machine has no pages of the size
        for name in found:
            found[name] = int((pool / f"{name}_hugepages").read_text())
    more = max(0, found["nr_overcommit"] - found["surplus"])
    return max(0, found["free"] - found["resv"]) + more
