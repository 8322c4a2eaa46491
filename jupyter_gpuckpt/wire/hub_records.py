"""The records that the hub's spawner keeps in its state, in the hub's database, and that `jupyter gpuckpt hub-report` reads.

They come from the answers of users' servers: `hub/server_request.py` bounds their values.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

_Record = TypeVar("_Record")

#: The time that a server's stop may take besides the suspends: to undo those that are incomplete at the deadline, and to exit.
STOP_MARGIN_SECONDS = 15
#: The keys in a spawner's state: what waits for the next server, what a clean start has set aside, and the numbers for `hub-report`.
WAITING, SET_ASIDE, USAGE = "gpuckpt_sessions", "gpuckpt_set_aside", "gpuckpt_usage"
#: The most kernels that are named in the hub's pages and its database.
NAMED = 20


class WaitingKernel(msgspec.Struct, frozen=True):
    """A suspended kernel. `name`: its notebook; `size_bytes`: RAM and GPU memory; `since`: seconds since the epoch."""

    name: str
    size_bytes: int = 0
    gpu_bytes: int = 0
    since: float = 0.0


class Waiting(msgspec.Struct, frozen=True):
    """The suspended kernels that wait for a user's next server: sums over all of them, and the first of them."""

    count: int = 0
    size_bytes: int = 0
    gpu_bytes: int = 0
    kernels: list[WaitingKernel] = []

    def __add__(self, others: Waiting) -> Waiting:
        """Return these kernels and others."""
        return Waiting(
            self.count + others.count,
            self.size_bytes + others.size_bytes,
            self.gpu_bytes + others.gpu_bytes,
            [*self.kernels, *others.kernels][:NAMED],
        )

    @classmethod
    def of(cls, kernels: list[WaitingKernel]) -> Waiting:
        """Return the record of these kernels."""
        sizes = (sum(k.size_bytes for k in kernels), sum(k.gpu_bytes for k in kernels))
        return cls(len(kernels), *sizes, kernels[:NAMED])


class Usage(msgspec.Struct, frozen=True):
    """The numbers of a user's snapshots at a moment, at the latest the server's last stop. `at`: seconds since the epoch.

    `limit_bytes`: the administrator's limit of the disk use; 0: none.
    """

    at: float = 0.0
    disk_bytes: int = 0
    limit_bytes: int = 0


class SpawnerState(msgspec.Struct, frozen=True):
    """What the spawner's state has of this package."""

    waiting: Waiting = Waiting()
    set_aside: Waiting = Waiting()
    usage: Usage = Usage()

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> SpawnerState:
        """Return the records of a spawner's state; each that another version wrote, or nobody, is empty."""
        return cls(
            _found(state, WAITING, Waiting, Waiting()),
            _found(state, SET_ASIDE, Waiting, Waiting()),
            _found(state, USAGE, Usage, Usage()),
        )


def _found(state: dict[str, Any], key: str, kind: type[_Record], otherwise: _Record) -> _Record:
    try:
        return msgspec.convert(state.get(key), kind)
    except msgspec.ValidationError:
        return otherwise
