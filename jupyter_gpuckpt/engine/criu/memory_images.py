"""A process's memory in CRIU's images: its areas, and the addresses of its pages (images/mm.proto, pagemap.proto).

An invalid image raises ObjectCorrupt, as in `images.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...errors import HostIncompatible
from ...wire.plurals import counted
from .images import (
    PAGE,
    PAGEMAP_COUNT,
    PAGEMAP_FLAGS,
    PE_LAZY,
    PE_PRESENT,
    Extent,
    Field,
    edit_first,
    encode,
    fields,
    inner,
    messages,
    numbers,
    replace,
    split_messages,
    strict,
    with_inner,
)

_VARINT = 0
#: mm_entry, vma_entry, and statuses of the latter (criu/include/image.h).
_PROGRAM, _AREAS = 12, 14
_START, _END, _OFFSET, _FILE, _PROTECTION, _MAPPED_AS, _STATUS = range(1, 8)
_ADVICE = 9
#: MADV_WIPEONFORK, as a bit of the advice.
_WIPE_ON_FORK = 1 << 18
_MAP_NORESERVE, _MAP_LOCKED = 0x4000, 0x2000
_IS_GUARD = 1 << 16
#: VMA_FILE_PRIVATE and VMA_FILE_SHARED.
_IS_OF_FILE = 1 << 6 | 1 << 7
#: Shared memory without a name, which has the status of a file, too.
_IS_MEMFD = 1 << 14
#: Flags of mmap: huge pages, and the place of the logarithm of their size.
_HUGETLB, _HUGE_SHIFT, _HUGE_MASK = 0x40000, 26, 0x3F
#: The size of an image of areas, with a few thousand of them, up to which its content is remembered.
_REMEMBERED_BYTES = 1 << 18
_POOLS = Path("/sys/kernel/mm/hugepages")
#: VMA_AREA_VSYSCALL, VDSO, VVAR, AIORING and SHSTK.
_IS_SPECIAL = 1 << 2 | 1 << 3 | 1 << 12 | 1 << 13 | 1 << 15


class Area(msgspec.Struct, frozen=True):
    """A memory area of a process, with mmap's protection and flags. `is_special`: made by Linux itself, for instance its vdso."""

    start: int
    end: int
    protection: int
    flags: int
    is_special: bool = False


class _Entry(NamedTuple):
    """A vma_entry: an area as CRIU lists it, also if it is a guard region."""

    start: int
    end: int
    offset: int
    file: int
    protection: int
    flags: int
    status: int
    advice: int


class _Memory(NamedTuple):
    """An mm_entry: the id of the process's program file, and its areas."""

    program: int | None
    entries: tuple[_Entry, ...]


def _entries(path: Path) -> tuple[_Entry, ...]:
    return _memory(path).entries


def _memory(path: Path) -> _Memory:
    content = path.read_bytes()
    return _remembered(content) if len(content) <= _REMEMBERED_BYTES else _decoded(content)


def _decoded(content: bytes) -> _Memory:
    first, *others = split_messages(content)
    entries = tuple(
        _entry_of(numbers(area)) for message in (first, *others) for area in inner(message, _AREAS)
    )
    return _Memory(numbers(first).get(_PROGRAM), entries)


#: A resume asks several times, and each copy of a snapshot does; most of a save's images are those of the last one.
_remembered = lru_cache(maxsize=8)(_decoded)


def _entry_of(values: dict[int, int]) -> _Entry:
    needed = (_START, _END, _OFFSET, _FILE, _PROTECTION, _MAPPED_AS, _STATUS)
    return _Entry._make([*(values[number] for number in needed), values.get(_ADVICE, 0)])


@strict
def areas(images: Path, nspid: int) -> list[Area]:
    """Return the memory areas of a process in the order of addresses, without guard regions."""
    entries = _entries(images / f"mm-{nspid}.img")
    found = [_area(entry) for entry in entries if not entry.status & _IS_GUARD]
    return sorted(found, key=lambda area: area.start)


@strict
def mapped_ends(images: Path) -> dict[int, int]:
    """Return up to which byte each file is mapped by the processes, by the file's id; an area may end beyond the file's end."""
    found: dict[int, int] = {}
    for path in images.glob("mm-*.img"):
        for entry in _entries(path):
            if entry.status & _IS_OF_FILE:
                end = entry.offset + entry.end - entry.start
                found[entry.file] = max(found.get(entry.file, 0), end)
    return found


@strict
def _huge_bytes(images: Path) -> Counter[int]:
    """Return the bytes of anonymous huge pages (hugetlb) of the processes, by the size of pages. Shared memory counts once."""
    found, shared = Counter[int](), dict[int, tuple[int, int]]()
    for path in images.glob("mm-*.img"):
        for entry in _entries(path):
            if not entry.flags & _HUGETLB:
                continue
            size = 1 << (entry.flags >> _HUGE_SHIFT & _HUGE_MASK)
            length = entry.end - entry.start
            if entry.status & _IS_MEMFD:
                end = entry.offset + length
                shared[entry.file] = size, max(end, shared.get(entry.file, (0, 0))[1])
            elif not entry.status & _IS_OF_FILE:
                found[size] += length
    for size, length in shared.values():
        found[size] += length
    return found


@strict
def wiped_on_fork(images: Path) -> dict[int, list[tuple[int, int]]]:
    """Return start and end of the areas that Linux empties in a forked process (MADV_WIPEONFORK), by process."""
    found: dict[int, list[tuple[int, int]]] = {}
    for path in images.glob("mm-*.img"):
        for entry in _entries(path):
            if entry.advice & _WIPE_ON_FORK:
                nspid = int(path.stem.removeprefix("mm-"))
                found.setdefault(nspid, []).append((entry.start, entry.end))
    return found


def _area(entry: _Entry) -> Area:
    kind = entry.protection, entry.flags
    return Area(entry.start, entry.end, *kind, bool(entry.status & _IS_SPECIAL))


@strict
def split(
    images: Path, nspid: int, addresses: Sequence[int], is_split: Callable[[Area], bool]
) -> None:
    """Split the memory areas of a process at these addresses, in ascending order, where `is_split` says so; Linux merges them again."""
    path = images / f"mm-{nspid}.img"
    head, *others = messages(path)
    parts: list[Field] = []
    for number, wire, value in fields(head):
        pieces = [value]
        if number == _AREAS and isinstance(value, bytes):
            area = _entry_of(numbers(value))
            if not area.status & _IS_GUARD and is_split(_area(area)):
                inside = addresses[
                    bisect_right(addresses, area.start) : bisect_left(addresses, area.end)
                ]
                pieces = [_part(value, *ends) for ends in pairwise((area.start, *inside, area.end))]
        parts += [(number, wire, piece) for piece in pieces]
    replace(path, [encode(parts), *others])


def _part(area: bytes, start: int, end: int) -> bytes:
    changed = {_START: start, _END: end}
    return encode(
        [(number, wire, changed.get(number, value)) for number, wire, value in fields(area)]
    )


@strict
def reserve_nothing(images: Path, nspid: int, is_meant: Callable[[Area], bool]) -> None:
    """Let CRIU map those memory areas of a process for which `is_meant` says so without a reservation of memory (MAP_NORESERVE)."""
    _map_otherwise(images, nspid, is_meant, lambda flags: flags | _MAP_NORESERVE)


@strict
def unlock(images: Path, nspid: int, areas: Collection[tuple[int, int]]) -> None:
    """Prevent CRIU from locking these memory areas of a process, which would fill them."""
    _map_otherwise(
        images,
        nspid,
        lambda area: (area.start, area.end) in areas,
        lambda flags: flags & ~_MAP_LOCKED,
    )


def _map_otherwise(
    images: Path, nspid: int, is_meant: Callable[[Area], bool], changed: Callable[[int], int]
) -> None:
    def change(value: bytes) -> bytes:
        entry = _entry_of(numbers(value))
        if entry.status & _IS_GUARD or not is_meant(_area(entry)):
            return value
        flags = {_MAPPED_AS: changed(entry.flags)}
        return encode(
            [(number, wire, flags.get(number, found)) for number, wire, found in fields(value)]
        )

    edit_first(images / f"mm-{nspid}.img", lambda head: with_inner(head, _AREAS, change))


@strict
def program_id(images: Path, nspid: int) -> int:
    """Return the id of the program file of a process; processes of one program have the same id."""
    program = _memory(images / f"mm-{nspid}.img").program
    if program is None:
        raise ValueError(f"process {nspid} has no program")
    return program


@strict
def replace_lazy(images: Path, nspid: int, extents: Sequence[Extent]) -> None:
    """Remove the lazy pages of a process from its pagemap, and add `extents` as pages that are in its pages file."""
    path = images / f"pagemap-{nspid}.img"
    head, *entries = messages(path)
    own = [entry for entry in entries if not numbers(entry).get(PAGEMAP_FLAGS, 0) & PE_LAZY]
    added = [_entry(extent, PE_PRESENT, wide=_are_wide(entries)) for extent in extents]
    replace(path, [head, *sorted((*own, *added), key=_address)])


@strict
def add_lazy(images: Path, nspid: int, extents: Sequence[Extent]) -> None:
    """Add lazy pages to a process's pagemap, in the order of addresses."""
    path = images / f"pagemap-{nspid}.img"
    head, *entries = messages(path)
    added = [_entry(extent, PE_LAZY, wide=_are_wide(entries)) for extent in extents]
    replace(path, [head, *sorted((*entries, *added), key=_address)])


def _address(entry: bytes) -> int:
    return numbers(entry)[1]


def _are_wide(entries: Sequence[bytes]) -> bool:
    """Return whether the number of pages is in the 64-bit field; versions of CRIU that use it set the older field to 0."""
    return any(PAGEMAP_COUNT in numbers(entry) for entry in entries)


def _entry(extent: Extent, flags: int, *, wide: bool) -> bytes:
    pages = extent.length // PAGE
    parts: list[Field] = [(1, _VARINT, extent.address), (2, _VARINT, 0 if wide else pages)]
    parts.append((PAGEMAP_FLAGS, _VARINT, flags))
    if wide:
        parts.append((PAGEMAP_COUNT, _VARINT, pages))
    return encode(parts)


def require_huge_pages(images: Path) -> None:
    """Raise HostIncompatible if the processes need more huge pages (hugetlb) than the pools have, which an administrator sets aside."""
    for size, length in _huge_bytes(images).items():
        pool, pages = _POOLS / f"hugepages-{size >> 10}kB", length // size
        free = _free_huge_pages(pool)
        if free is None or pages <= free:
            continue
        raise HostIncompatible(
            f"The kernel needs {counted(pages, 'huge page')} of {size >> 20} MB; {free} can be had here.",
            hint=f"End programs that use huge pages, or let an administrator write a number to {pool}/nr_hugepages that is higher by"
            f" {pages - free}. The snapshot is untouched.",
        )


def _free_huge_pages(pool: Path) -> int | None:
    """Return how many pages a pool can give; None: it is not known, because Linux's files about pools are hidden."""
    if not _POOLS.is_dir():
        return None
    found = dict.fromkeys(("free", "resv", "nr_overcommit", "surplus"), 0)
    with suppress(FileNotFoundError):  # this machine has no pages of the size
        for name in found:
            found[name] = int((pool / f"{name}_hugepages").read_text())
    more = max(0, found["nr_overcommit"] - found["surplus"])
    return max(0, found["free"] - found["resv"]) + more
