"""The records of notices that a machine will go, shared by the daemon and its clients."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated

import msgspec

#: The most standing notices, and the most characters of a notice's id; others are ignored.
MAX_NOTICES, MAX_ID_CHARACTERS = 50, 200
#: A time on the clock of `now`, in seconds.
Timestamp = Annotated[float, msgspec.Meta(ge=0, le=1e10)]


class NoticeKind(StrEnum):
    """The reason for which a machine will go."""

    #: Its provider takes it back: a spot or preemptible machine, or one that is being removed.
    RECLAIM = "reclaim"
    #: Its provider stops it; it may be started again.
    STOP = "stop"
    #: Its provider reboots it, or moves it without its memory.
    MAINTENANCE = "maintenance"
    #: It may be taken back soon, at an unknown time or not at all: kernels are saved and run on.
    REBALANCE = "rebalance"
    #: Its own system is shut down.
    SHUTDOWN = "shutdown"
    #: A program of its administrator or user reported it.
    REQUESTED = "requested"


class Notice(msgspec.Struct, frozen=True):
    """A notice that this machine will go. `deadline`: when, on the clock of `now`; None: at an unknown time.

    `id`: the same for all records of one notice; `disk_survives`: whether the local snapshots can be read afterwards; `withdrawn`:
    the machine stays after all.
    """

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_CHARACTERS)]
    kind: NoticeKind
    deadline: Timestamp | None = None
    disk_survives: bool = False
    withdrawn: bool = False
    #: Whether kernels are being suspended for it; a daemon sets it when little time is left.
    is_due: bool = False
    #: Whether kernels are being saved for it and run on; a daemon sets it before the notice is due, if there is time.
    is_saving: bool = False
    #: Whether the machine goes as soon as all kernels are safe, so that nothing is gained by saving them first.
    ends_early: bool = False

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds until the deadline, at least 0; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - now())


class NoticeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /notices: a hook's notice that this machine goes, or that it stays (`withdrawn`)."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_CHARACTERS // 2)]
    within_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e8)] = 0.0
    disk_survives: bool = False
    withdrawn: bool = False


class Unsafe(msgspec.Struct, frozen=True):
    """A kernel that would be lost, or go back to an older state, with this machine.

    `uploaded_at`: the time of the newest snapshot of it in a remote (seconds since the epoch); None: no remote has one, or no upload is
    needed.
    """

    kernel_id: str
    name: str
    is_running: bool
    uploaded_at: float | None = None


class NoticesReport(msgspec.Struct, frozen=True):
    """GET /notices: the standing notices, and the kernels that are not safe yet."""

    notices: list[Notice] = []
    unsafe: list[Unsafe] = []
    #: Whether there is a remote to which snapshots are uploaded automatically.
    has_remote: bool = False


def now() -> float:
    """Return the seconds since the boot, including sleep. Unlike the wall clock, this clock is never set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
