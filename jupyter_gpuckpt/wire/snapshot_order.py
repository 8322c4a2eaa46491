"""The order of snapshots. Within one kernel their numbers decide, because clocks are set back and those of machines differ.

A snapshot's number is higher than that of every snapshot of its kernel that was known where it was made: those of the store, and in remote
sessions those that were listed when the lease was granted. So the state from which a kernel was resumed comes before everything that is
saved of it later, on any machine. Times decide only between snapshots of different kernels, for people.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeVar

#: The highest number of a snapshot.
MAX_NUMBER = (1 << 53) - 1
#: The highest number with which a snapshot may come from outside. It leaves higher ones for the snapshots that are made after it.
MAX_ARRIVING_NUMBER = 1 << 52


class Numbered(Protocol):
    """A snapshot with its place in the order of its kernel's snapshots."""

    @property
    def snapshot_id(self) -> str:
        """The snapshot's id."""

    @property
    def kernel_id(self) -> str:
        """The id of its kernel."""

    @property
    def created(self) -> float:
        """When it was made, by the clock of the machine that made it (seconds since the epoch)."""

    @property
    def number(self) -> int:
        """Its number among the snapshots of its kernel."""


class Making(NamedTuple):
    """A snapshot that is about to be made: its id, which the kernel's record names, and a number that its own must exceed.

    `number`: the one that was reserved for it (0: none).
    """

    snapshot_id: str
    above: int = 0
    number: int = 0


_Numbered = TypeVar("_Numbered", bound=Numbered)
_in_kernel = attrgetter("number", "created", "snapshot_id")


def newest_first(snapshots: Iterable[_Numbered]) -> list[_Numbered]:
    """Return snapshots, newest first: those of one kernel by number, and kernels among each other by time.

    A snapshot counts as made no earlier than the snapshots of its kernel with lower numbers, whatever its clock showed.
    """
    last: dict[str, float] = {}
    keyed = []
    # The place decides between equal times: a kernel's newest comes last.
    for place, one in enumerate(sorted(snapshots, key=_in_kernel)):
        last[one.kernel_id] = at = max(one.created, last.get(one.kernel_id, 0.0))
        keyed.append((at, place, one))
    keyed.sort(reverse=True)
    return [one for _, _, one in keyed]


def next_number(*known: int) -> int:
    """Return the number of a kernel's next snapshot. `known`: numbers that it must exceed."""
    return min(MAX_NUMBER, max(known, default=0) + 1)
