"""Deadlines that outlive a process and do not move when the time of day is set."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

import msgspec


class Deadline(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The end of a time that began at a known moment; the default value stands for none.

    Within one boot the clock that counts from it decides, which nobody can set. After a reboot only the time of day is known: then no
    more is left than the whole time, however wrong that clock is. `at`: that time of day, in seconds since the epoch, for people.
    """

    at: float = 0.0
    seconds: float = 0.0
    boot_id: str = ""
    since_boot: float = 0.0

    def __bool__(self) -> bool:
        return self.at > 0

    @property
    def left(self) -> float:
        """The seconds until the deadline; 0 if it has passed."""
        is_same_boot = self.boot_id == boot_id()
        left = self.since_boot - since_boot() if is_same_boot else self.at - time.time()
        return min(max(0.0, left), self.seconds)


def after(seconds: float) -> Deadline:
    """Return the deadline in so many seconds."""
    return Deadline(time.time() + seconds, seconds, boot_id(), since_boot() + seconds)


def since_boot() -> float:
    """Return the seconds since the boot, by a clock that cannot be set and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def boot_id() -> str:
    """Return the id of this boot of the machine (man 4 random)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
