"""How fast this machine has saved kernels: for estimates of what fits into a time. Sizes in bytes, times in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from .model import SnapshotInfo

#: What the suspend of an empty kernel takes.
FIXED_SECONDS = 0.3
#: Smaller snapshots say little about the rate.
TELLING_BYTES = 200_000_000
#: What was long ago was perhaps another machine.
_TELLING_SNAPSHOTS = 10


def measured_rates(snapshots: Iterable[SnapshotInfo]) -> list[float]:
    """Bytes per second of the latest snapshots, newest first, that are large enough to tell."""
    telling = (
        info.sizes.raw_bytes / info.seconds
        for info in snapshots
        if info.sizes.raw_bytes >= TELLING_BYTES and info.seconds > 0
    )
    return list(islice(telling, _TELLING_SNAPSHOTS))
