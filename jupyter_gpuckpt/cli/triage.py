"""Which kernels are saved first when the time may not do for all. Pure functions; sizes in bytes, times in seconds.

The rule: a kernel is worth the time that has passed since it was last saved, began or was resumed, for that is what its user
would lose. A suspend costs a fixed time and its bytes at a rate. Who is worth most for each second that it costs comes first,
as long as what is begun is expected to fit into the time. What is not expected to fit comes last, smallest first: it is tried
all the same, since an estimate is no more than that.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import msgspec

from ..model import SnapshotInfo
from ..save_rates import FIXED_SECONDS, measured_rates

#: Where no earlier snapshot shows it: what two slow processors compress and write.
BYTES_PER_SECOND = 500e6


class Candidate(msgspec.Struct, frozen=True):
    """A kernel that is to be saved. `size_bytes`: memory and GPU memory; `at_stake_seconds`: what its user would lose."""

    kernel_id: str
    size_bytes: int
    at_stake_seconds: float


def order(
    candidates: Iterable[Candidate],
    within_seconds: float | None,
    bytes_per_second: float = BYTES_PER_SECOND,
) -> list[Candidate]:
    """All of them, in the order in which to begin; `within_seconds` None: there is time for all."""

    def cost(one: Candidate) -> float:
        return FIXED_SECONDS + one.size_bytes / bytes_per_second

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
    """The usual rate of the latest snapshots, newest first, that are large enough to tell; else `BYTES_PER_SECOND`."""
    rates = measured_rates(snapshots)
    return statistics.median(rates) if rates else BYTES_PER_SECOND
