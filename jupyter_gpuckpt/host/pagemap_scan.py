"""PAGEMAP_SCAN (Linux 6.7), which lists the pages of a process. See Documentation/admin-guide/mm/pagemap.rst."""

from __future__ import annotations

import ctypes
import fcntl
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_SCAN = 0xC0606610
_ARGUMENT = struct.Struct("<12Q")
_WPALLOWED, _WRITTEN = 1 << 0, 1 << 1
_FILE, _PRESENT, _SWAPPED, _PFNZERO, _GUARD = 1 << 2, 1 << 3, 1 << 4, 1 << 5, 1 << 8
#: The flag by which a scan write-protects the pages that it finds, as a userfaultfd does.
_WP_MATCHING = 1 << 0
#: Regions per scan: a scan for more than fit into Linux's buffer reports some twice (fs/proc/task_mmu.c, PAGEMAP_WALK_SIZE; seen on 6.18).
_REGIONS = 512

Area = tuple[int, int]


def own_pages(descriptor: int, start: int, end: int) -> Iterator[Area]:
    """Yield the private pages of a process: in memory or swapped out; not a file's, not the zero page, not a guard page.

    `descriptor`: the process's pagemap. A run of pages may be yielded in pieces. Raises OSError.
    """
    return _scan(descriptor, start, end)


def unwritten_pages(descriptor: int, start: int, end: int) -> Iterator[Area]:
    """Yield those of `own_pages` that a userfaultfd has write-protected and that were not written since. Raises OSError."""
    return _scan(descriptor, start, end, wanted=_WPALLOWED, unwanted=_WRITTEN)


def protect_pages(descriptor: int, start: int, end: int) -> None:
    """Write-protect those of `own_pages` that were written, where a userfaultfd is registered. Raises OSError.

    Places without a page stay as they are: their marks would look like pages that were swapped out.
    """
    for _ in _scan(descriptor, start, end, wanted=_WPALLOWED | _WRITTEN, flags=_WP_MATCHING):
        pass


def _scan(
    descriptor: int, start: int, end: int, *, wanted: int = 0, unwanted: int = 0, flags: int = 0
) -> Iterator[Area]:
    """Yield the own pages that have all categories of `wanted` and none of `unwanted`."""
    unwanted |= _FILE | _PFNZERO | (_GUARD if _knows_guards() else 0)
    masks = unwanted, unwanted | wanted, _PRESENT | _SWAPPED, _PRESENT
    regions = (ctypes.c_uint64 * (3 * _REGIONS))()
    where = ctypes.addressof(regions), _REGIONS
    while start < end:
        argument = bytearray(
            _ARGUMENT.pack(_ARGUMENT.size, flags, start, end, 0, *where, 0, *masks)
        )
        count = fcntl.ioctl(descriptor, _SCAN, argument)
        start = _ARGUMENT.unpack(argument)[4]
        found = regions[: 3 * count]
        yield from zip(found[::3], found[1::3], strict=True)


@cache
def is_supported() -> bool:
    """Return whether Linux has PAGEMAP_SCAN."""
    return _accepts(_PFNZERO)


@cache
def _knows_guards() -> bool:
    return _accepts(_GUARD)


def _accepts(category: int) -> bool:
    region = (ctypes.c_uint64 * 3)()
    wanted = category, category, 0, _PRESENT
    argument = bytearray(
        _ARGUMENT.pack(_ARGUMENT.size, 0, 0, 4096, 0, ctypes.addressof(region), 1, 0, *wanted)
    )
    try:
        with Path("/proc/self/pagemap").open("rb") as pagemap:
            fcntl.ioctl(pagemap.fileno(), _SCAN, argument)
    except OSError:
        return False
    return True
