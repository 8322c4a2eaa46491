"""The lowest priority for this process, for work that no user waits for."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

NICE = 19
#: The number of ioprio_set (man 2 ioprio_set) on x86_64; no library has it.
_IOPRIO_SET = 251
_WHO_PROCESS, _CLASS_IDLE, _CLASS_SHIFT = 1, 3, 13


def take() -> None:
    """Set the lowest CPU and I/O priority for this process and make it the OOM killer's first choice; never raises.

    Call this before any thread starts, because threads inherit the priority. SCHED_IDLE is not used: beside kernels that compute for
    days, such a process would hardly run at all.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    ctypes.CDLL(None).syscall(_IOPRIO_SET, _WHO_PROCESS, 0, _CLASS_IDLE << _CLASS_SHIFT)
    # With autogroups, a process's own priority counts only within its session (man 7 sched).
    for path, value in (("/proc/self/autogroup", str(NICE)), ("/proc/self/oom_score_adj", "1000")):
        with suppress(OSError):
            Path(path).write_text(value)
