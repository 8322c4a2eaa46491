"""PAGEMAP_SCAN (Linux 6.7), which lists the pages of a process. See Documentation/admin-guide/mm/pagemap.rst."""

from __future__ import annotations

import ctypes
import fcntl
import struct
from functools import cache
from pathlib import Path

_SCAN = 0xC0606610
_ARGUMENT = struct.Struct("<12Q")
_FILE, _PRESENT, _SWAPPED, _PFNZERO, _GUARD = 1 << 2, 1 << 3, 1 << 4, 1 << 5, 1 << 8


def own_pages(
    descriptor: int, start: int, end: int, regions: int, max_regions: int
) -> tuple[int, int]:
    """Find the private pages of a process: in memory or swapped out; not a file's, not the zero page, not a guard page.

    `descriptor`: the process's pagemap. `regions`: the address of an array of `max_regions` entries of three 64-bit numbers
    (struct page_region); the first two become start and end of a region. Return the number of regions found, and the address
    where the scan ended. Raises OSError.
    """
    unwanted = _FILE | _PFNZERO | (_GUARD if _knows_guards() else 0)
    wanted = unwanted, unwanted, _PRESENT | _SWAPPED, _PRESENT
    argument = bytearray(
        _ARGUMENT.pack(_ARGUMENT.size, 0, start, end, 0, regions, max_regions, 0, *wanted)
    )
    count = fcntl.ioctl(descriptor, _SCAN, argument)
    return count, _ARGUMENT.unpack(argument)[4]


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
