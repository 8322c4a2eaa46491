"""The limits of memory that the control groups above this process set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..linux.control_groups import MEMBERSHIP, ROOT, ControlGroup, groups_above

#: Fields of memory.stat whose memory Linux reclaims before it kills a process. Files that were read twice are in `active_file`.
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")


class MemoryLimit(NamedTuple):
    """A limit of a group. Page cache and slab that Linux can reclaim count as free, as they do in MemAvailable."""

    folder: Path
    limit_bytes: int
    free_bytes: int


def limits(
    root: Path = ROOT, membership: Path = MEMBERSHIP, *, throttling_too: bool = False
) -> list[MemoryLimit]:
    """Return the memory limits of the groups above this process, innermost first.

    `throttling_too`: also memory.high of version 2, beyond which Linux slows the processes down instead of killing one.
    """
    return list(_limits(groups(root, membership), throttling_too=throttling_too))


def headroom(above: Iterable[ControlGroup]) -> int | None:
    """Return the bytes left below the tightest memory limit of these groups; None: no limit."""
    found = _limits(above, throttling_too=False)
    return min((limit.free_bytes for limit in found), default=None)


def groups(root: Path = ROOT, membership: Path = MEMBERSHIP) -> list[ControlGroup]:
    """Return the memory groups of this process, innermost first."""
    return groups_above("memory", root, membership)


def _limits(groups: Iterable[ControlGroup], *, throttling_too: bool) -> Iterator[MemoryLimit]:
    for folder, modern in groups:
        for name in _limit_files(modern=modern, throttling_too=throttling_too):
            if (limit := _limit(folder, name, modern=modern)) is not None:
                yield limit


def _limit_files(*, modern: bool, throttling_too: bool) -> list[str]:
    if not modern:
        return ["memory.limit_in_bytes"]
    return ["memory.max", "memory.high"] if throttling_too else ["memory.max"]


def _limit(folder: Path, name: str, *, modern: bool) -> MemoryLimit | None:
    limit = _number(folder / name)
    # In version 1 the largest multiple of the page size means "no limit".
    if limit is None or limit >= 1 << 62:
        return None
    used = _number(folder / ("memory.current" if modern else "memory.usage_in_bytes"))
    if used is None:
        return None
    free = limit - used + _reclaimable_bytes(folder, modern=modern)
    return MemoryLimit(folder, limit, max(0, min(limit, free)))


def _reclaimable_bytes(folder: Path, *, modern: bool) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    # In version 1 the names without `total_` leave the groups below out, and slab is not there.
    names = _RECLAIMABLE if modern else [f"total_{name}" for name in _RECLAIMABLE]
    fields = [line.split() for line in lines]
    return sum(int(field[1]) for field in fields if len(field) == 2 and field[0] in names)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent at the root; "max" means no limit
        return None
