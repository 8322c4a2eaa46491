"""The control groups above this process, and how many processors it may use (man page: cgroups(7), both versions)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


class ControlGroup(NamedTuple):
    """A group that may set a limit. `modern`: of version 2."""

    folder: Path
    modern: bool


def groups_above(
    controller: str, root: Path = ROOT, membership: Path = MEMBERSHIP
) -> list[ControlGroup]:
    """Return the groups of a controller ("cpu", "memory") above this process, innermost first."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        modern = not controllers
        top = root if modern else root / controller
        inner = top / path.lstrip("/")
        # In a container the path may be the host's; then only the top group is visible.
        chain = [inner, *inner.parents] if inner.is_dir() else [top]
        found += [ControlGroup(folder, modern) for folder in chain if folder.is_relative_to(top)]
    return found


def processors(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """Return how many processors this process may use: at least one, and a part of one counts as one.

    A container with a CPU limit sees all processors of its machine, but may use only the time of some of them in each period.
    """
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, processor_limit(membership, root) or allowed))


def processor_limit(membership: Path, root: Path = ROOT) -> int | None:
    """Return how many processors' time the groups of a process allow it, a part of one as one; None: they set no limit.

    `membership`: the process's list of groups (/proc/PID/cgroup).
    """
    return min(_processor_limits(groups_above("cpu", root, membership)), default=None)


def _processor_limits(groups: list[ControlGroup]) -> Iterator[int]:
    for folder, modern in groups:
        names = ("cpu.max",) if modern else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        try:
            quota, period = map(
                int, " ".join((folder / name).read_text() for name in names).split()
            )
        except (OSError, ValueError):  # absent at the root; "max" means no limit
            continue
        if quota > 0 and period > 0:  # in version 1, -1 means no limit
            yield -(-quota // period)
