"""Tracking of the writes of a process to its memory, by which a save knows what it need not read again.

Covers: which pages were not written since a moment, and for which pages Linux cannot tell. Does not cover: what the store has of
them (`snapshots.unwritten_memory`).

A userfaultfd with asynchronous write protection is registered in the private anonymous areas of the process. A save
protects their pages; Linux removes the protection of a page at the first write to it, and PAGEMAP_SCAN lists the pages that have it.
Only this process has the descriptor: when it ends, Linux removes all registrations and protections, and the program runs on.
See Linux, Documentation/admin-guide/mm/userfaultfd.rst.

Why a protected page was not written: only `protect` protects, and only while the process is stopped. Everything else can only remove
a protection: writes by the program and by system calls, madvise, munmap, mmap, mremap, execve. A forked process has none.
`tests/fuzz/test_written_pages.py` looks for exceptions. The known ones are excluded here:

- Memory of files: after madvise(MADV_DONTNEED) a page comes back with its protection and with the file's content (mm/memory.c,
  `pte_install_uffd_wp_if_needed`).
- Areas in which another userfaultfd is registered: its owner protects pages, too.
- Pinned pages: io_uring, asynchronous reads and devices write to them past the page tables. A fork copies them at once instead of
  sharing them (mm/memory.c, `copy_present_ptes`), by which `shared_with` finds them. Pinning for writing counts as a write, so it
  does no harm if a page was pinned and let go between two saves.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ...host import pagemap_scan
from ...host.pagemap_scan import Area
from ..criu.images import PAGE
from ..injection.twins import SHARES_MEMORY, make_twin
from ..tree.duplicates import duplicate

_NR_USERFAULTFD, _USER_MODE_ONLY = 323, 1
#: ioctls of a userfaultfd, their version, the feature WP_ASYNC, and the mode of a registration (include/uapi/linux/userfaultfd.h).
_API, _REGISTER = 0xC018AA3F, 0xC020AA00
_VERSION, _WP_ASYNC, _MODE_WP = 0xAA, 1 << 15, 2
_API_ARGUMENT, _REGISTER_ARGUMENT = struct.Struct("<3Q"), struct.Struct("<4Q")
#: Bits of an entry of /proc/PID/pagemap: the page is mapped by one process only, and it is present.
_EXCLUSIVE, _PRESENT = np.uint64(1 << 56), np.uint64(1 << 63)
#: The most entries of it that are read at once.
_ENTRIES = 1 << 16

#: The first version of Linux in which memory that mremap moves loses its protection; before, it might count as unwritten for ever.
_FIRST_LINUX = (6, 13)

Pages = NDArray[np.int64]


def is_supported() -> bool:
    """Return whether this Linux tells which pages were written."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (
        release is not None
        and (int(release[1]), int(release[2])) >= _FIRST_LINUX
        and pagemap_scan.is_supported()
    )


class WriteTracking:
    """Tracking of the process `pid` from construction until `close`; the process's parent must be ours (`injection/twins.py`).

    The constructor and all methods but `close` may be called only while the process is stopped (T). The constructor raises OSError or
    TimeoutError where tracking cannot be had, for instance because of a seccomp filter.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        #: Where its areas begin and end.
        self._range: Area = (0, 0)
        # The twin belongs to the thread that made it, and Linux ends both together.
        with ThreadPoolExecutor(1, "track-writes") as thread:
            self._descriptor = thread.submit(_userfaultfd_of, pid).result()
        try:
            fcntl.ioctl(self._descriptor, _API, _API_ARGUMENT.pack(_VERSION, _WP_ASYNC, 0))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the tracking: Linux removes all registrations and protections."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def unwritten(self) -> list[Area]:
        """Return the private pages that were not written since they were protected, in the order of addresses."""
        return self._look(lambda pagemap, area: None)

    def protect(self) -> list[Area]:
        """Return what `unwritten` does, and protect all private pages of anonymous areas, of new ones, too."""
        return self._look(lambda pagemap, area: pagemap_scan.protect_pages(pagemap, *area))

    def still_unwritten(self) -> list[Area]:
        """Return the pages that were not written since `protect`, and others; the process must not have run since that."""
        with _pagemap(self.pid) as pagemap:
            return list(pagemap_scan.unwritten_pages(pagemap, *self._range))

    def _look(self, then: Callable[[int, Area], None]) -> list[Area]:
        """Return the unwritten pages; call `then` for each area that is registered now."""
        areas, own = _areas(self.pid), list[Area]()
        if not areas:
            return []
        self._range = areas[0][0], areas[-1][1]
        with _pagemap(self.pid) as pagemap:
            found = list(pagemap_scan.unwritten_pages(pagemap, *self._range))
            for area in areas:
                # It fails where another userfaultfd is registered: what that has protected was found, too.
                if self._register(*area):
                    own.append(area)
                    then(pagemap, area)
        return _common(found, own)

    def _register(self, start: int, end: int) -> bool:
        """Register an area; return whether it is ours, which it may have been already."""
        argument = _REGISTER_ARGUMENT.pack(start, end - start, _MODE_WP, 0)
        try:
            fcntl.ioctl(self._descriptor, _REGISTER, argument)
        except OSError:
            return False
        return True


def shared_with(ghost_pid: int, pages: Pages) -> NDArray[np.bool_]:
    """Return for each page, by its address, whether the ghost shares it with the process.

    Not shared are pages that were pinned when the ghost was made, that the process has written since, or that a fork does not copy.
    Pages that are swapped out do not count as shared.
    """
    shared = np.zeros(len(pages), np.bool_)
    ends = np.append(np.flatnonzero(np.diff(pages) != PAGE) + 1, len(pages)).tolist()
    with _pagemap(ghost_pid) as pagemap:
        for begin, end in zip([0, *ends[:-1]], ends, strict=True):
            for first in range(begin, end, _ENTRIES):
                last = min(first + _ENTRIES, end)
                data = os.pread(pagemap, 8 * (last - first), 8 * (int(pages[first]) // PAGE))
                entries = np.frombuffer(data, np.uint64)
                is_shared = (entries & (_PRESENT | _EXCLUSIVE)) == _PRESENT
                shared[first : first + len(entries)] = is_shared
    return shared


def inside(pages: Pages, areas: Sequence[Area]) -> NDArray[np.bool_]:
    """Return for each page, by its address, whether it lies in one of the areas, which are in ascending order."""
    if not areas:
        return np.zeros(len(pages), np.bool_)
    starts, ends = np.array(areas, np.int64).T
    at = np.searchsorted(starts, pages, side="right") - 1
    found: NDArray[np.bool_] = (at >= 0) & (pages < ends[at])
    return found


def _common(one: Sequence[Area], other: Sequence[Area]) -> list[Area]:
    """Return what is in both lists, which are in ascending order."""
    found, i, j = list[Area](), 0, 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            found.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


def _userfaultfd_of(pid: int) -> int:
    """Return a new userfaultfd of the memory of a process, made by a twin that shares the memory but not the descriptors."""
    twin = make_twin(pid, SHARES_MEMORY)
    try:
        theirs = twin.syscall(_NR_USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY)
        return duplicate(twin.pid, theirs)
    finally:
        twin.kill()


def _areas(pid: int) -> list[Area]:
    """Return the private anonymous areas of a process, neighbors together; not the stack of the first thread. Raises OSError."""
    found = list[Area]()
    # The process stands still meanwhile: this takes a third of the time of `processes.maps`.
    for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
        place, permissions, _, _, inode, *path = line.split(None, 5)
        anonymous = not path or path[0] == b"[heap]" or path[0].startswith(b"[anon:")
        if permissions[3:] != b"p" or inode != b"0" or not anonymous:
            continue
        start, _, end = place.partition(b"-")
        if found and found[-1][1] == int(start, 16):
            found[-1] = (found[-1][0], int(end, 16))
        else:
            found.append((int(start, 16), int(end, 16)))
    return found


@contextmanager
def _pagemap(pid: int) -> Iterator[int]:
    descriptor = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
