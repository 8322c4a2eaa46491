"""What a process tree uses of RAM and GPUs, and which changes of that are worth telling."""

from __future__ import annotations

from typing import NamedTuple

#: Smaller changes are not told: every kernel's memory changes all the time.
_SHARE, _LEAST_BYTES, _LEAST_PERCENT = 0.05, 1_000_000, 5


class Usage(NamedTuple):
    """Use of resources by a process tree. `gpu_utilization`: percent; None where it uses no GPU or the driver does not tell."""

    memory_bytes: int = 0
    gpu_bytes: int = 0
    gpu_utilization: int | None = None
    #: What is cheap to ask and changes as `memory_bytes` does; shared memory counts more than once.
    resident_bytes: int = 0

    def differs(self, other: Usage) -> bool:
        """Return whether a reader who knows `other` should be told."""
        busy, was = self.gpu_utilization, other.gpu_utilization
        return (
            (busy is None) is not (was is None)
            or abs((busy or 0) - (was or 0)) >= _LEAST_PERCENT
            or differ(self.memory_bytes, other.memory_bytes)
            or differ(self.gpu_bytes, other.gpu_bytes)
        )


def differ(one_bytes: int, other_bytes: int) -> bool:
    """Return whether two sizes differ by 5 % of the larger one and by a megabyte."""
    change = abs(one_bytes - other_bytes)
    return change >= _LEAST_BYTES and change >= _SHARE * max(one_bytes, other_bytes)
