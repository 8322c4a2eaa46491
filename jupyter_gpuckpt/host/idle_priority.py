"""The lowest priority of this process, for work that nobody waits for."""

from __future__ import annotations

import ctypes
import os
import platform
from contextlib import suppress
from pathlib import Path

#: The number of ioprio_set (man 2 ioprio_set), which no library has.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_WHO_PROCESS, _CLASS_IDLE, _CLASS_SHIFT = 1, 3, 13


def take() -> None:
    """Use processor and disk from now on only when nobody else does, and go first when memory runs out; never raises.

    To be called before there are threads: they inherit it.
    """
    os.nice(19)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall(number, _WHO_PROCESS, 0, _CLASS_IDLE << _CLASS_SHIFT)
    # Where every session is scheduled as a whole, the others count only inside of it (man 7 sched).
    for path, value in (("/proc/self/autogroup", "19"), ("/proc/self/oom_score_adj", "1000")):
        with suppress(OSError):
            Path(path).write_text(value)
