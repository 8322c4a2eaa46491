"""The lowest priority of this process, for work that nobody waits for."""

from __future__ import annotations

import ctypes
import os
import platform
from contextlib import suppress
from pathlib import Path

NICE = 19
#: The number of ioprio_set (man 2 ioprio_set), which no library has.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_WHO_PROCESS, _CLASS_IDLE, _CLASS_SHIFT = 1, 3, 13


def take() -> None:
    """Give way to all others from now on, and go first when memory runs out; never raises.

    To be called before there are threads: they inherit it. Not SCHED_IDLE: on a machine that computes for days, which is what
    kernels do, hardly anything would be done at all.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall(number, _WHO_PROCESS, 0, _CLASS_IDLE << _CLASS_SHIFT)
    # Where every session is scheduled as a whole, a process's own priority counts only inside of it (man 7 sched).
    for path, value in (("/proc/self/autogroup", str(NICE)), ("/proc/self/oom_score_adj", "1000")):
        with suppress(OSError):
            Path(path).write_text(value)
