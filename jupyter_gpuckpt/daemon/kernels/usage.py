"""A process tree's use of RAM and GPUs, and the threshold for publishing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

#: Thresholds below which changes are not published, because every kernel's memory changes all the time.
_SHARE, _MIN_BYTES, _MIN_PERCENT = 0.05, 1_000_000, 5
#: How often one measurement counts memory that keeps changing.
_MAX_COUNTS = 3


class Usage(NamedTuple):
    """The use of resources by a process tree. `gpu_utilization`: percent; None without a GPU or if the driver does not report it."""

    memory_bytes: int = 0
    gpu_bytes: int = 0
    gpu_utilization: int | None = None
    #: A cheap measure that changes as `memory_bytes` does; shared memory counts more than once.
    resident_bytes: int = 0

    def differs(self, other: Usage) -> bool:
        """Return whether the difference from `other`, published before, must be published."""
        busy, was = self.gpu_utilization, other.gpu_utilization
        return (
            (busy is None) is not (was is None)
            or abs((busy or 0) - (was or 0)) >= _MIN_PERCENT
            or differ(self.memory_bytes, other.memory_bytes)
            or differ(self.gpu_bytes, other.gpu_bytes)
        )


def counted(
    look: Callable[[], int], count: Callable[[], int], before: Usage | None
) -> tuple[int, int]:
    """Return memory and resident bytes; count memory only if the resident bytes differ from those of `before`.

    `look` is cheap and returns the resident bytes; `count` is slow. If the resident bytes change during a count, the count is repeated:
    stored with the resident bytes of another moment, it would be considered valid for as long as those stay the same.
    """
    resident = look()
    if before is not None and before.resident_bytes and not differ(before.resident_bytes, resident):
        return before.memory_bytes, before.resident_bytes
    memory = count()
    for _ in range(_MAX_COUNTS - 1):
        earlier, resident = resident, look()
        if not differ(earlier, resident):
            break
        memory = count()
    return memory, resident


def differ(one_bytes: int, other_bytes: int) -> bool:
    """Return whether two sizes differ by 5 % of the larger one and by a megabyte."""
    change = abs(one_bytes - other_bytes)
    return change >= _MIN_BYTES and change >= _SHARE * max(one_bytes, other_bytes)
