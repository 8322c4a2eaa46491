"""The rates of earlier saves on this machine, for estimates of further ones. Sizes are in bytes, times in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from ..wire.manifest_records import SnapshotInfo

#: The duration of a suspend of an empty kernel.
FIXED_SECONDS = 0.3
#: The least size of snapshots that count: smaller ones say little about the rate.
TELLING_BYTES = 200_000_000
#: The number of latest snapshots that count: older ones may be from another machine.
_TELLING_SNAPSHOTS = 10


def measured_rates(snapshots: Iterable[SnapshotInfo]) -> list[float]:
    """Return the rates, in bytes per second, of those of the latest snapshots (newest first) that are large enough."""
    telling = (
        info.sizes.raw_bytes / info.seconds
        for info in snapshots
        if info.sizes.raw_bytes >= TELLING_BYTES and info.seconds > 0
    )
    return list(islice(telling, _TELLING_SNAPSHOTS))
