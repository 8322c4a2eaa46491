"""The order in which to save kernels if there may not be time for all. Pure functions; sizes in bytes, times in seconds.

The value of a kernel is the time since it was last saved, started or resumed, because its user would lose that work. A suspend
costs a fixed time plus its bytes at a rate. Kernels with the highest value per second of cost come first, as long as they are
expected to fit into the time. The others come last, smallest first: they are tried anyway, because estimates may be wrong.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import msgspec

from ..model import SnapshotInfo
from ..save_rates import FIXED_SECONDS, measured_rates

#: The rate that is assumed without earlier snapshots: two slow CPUs compress and write as much.
BYTES_PER_SECOND = 500e6


class Candidate(msgspec.Struct, frozen=True):
    """A kernel to be saved. `size_bytes`: memory and GPU memory; `at_stake_seconds`: the work that its user would lose."""

    kernel_id: str
    size_bytes: int
    at_stake_seconds: float


def order(
    candidates: Iterable[Candidate],
    within_seconds: float | None,
    bytes_per_second: float = BYTES_PER_SECOND,
) -> list[Candidate]:
    """Return all candidates in the order in which to begin; `within_seconds` None: there is time for all."""

    def cost(candidate: Candidate) -> float:
        return FIXED_SECONDS + candidate.size_bytes / bytes_per_second

    by_worth = sorted(
        candidates, key=lambda one: (-one.at_stake_seconds / cost(one), one.size_bytes)
    )
    if within_seconds is None:
        return by_worth
    fitting: list[Candidate] = []
    others: list[Candidate] = []
    left = within_seconds
    for one in by_worth:
        if cost(one) <= left:
            left -= cost(one)
            fitting.append(one)
        else:
            others.append(one)
    return fitting + sorted(others, key=lambda one: one.size_bytes)


def measured_rate(snapshots: Iterable[SnapshotInfo]) -> float:
    """Return the median rate of the latest snapshots (newest first) that are large enough; else `BYTES_PER_SECOND`."""
    rates = measured_rates(snapshots)
    return statistics.median(rates) if rates else BYTES_PER_SECOND
