"""Protection of kernels from signals that are sent to all processes of a service (the daemon's side of outside_signals.c).

Covers: loading the library into a kernel, sending a kernel a signal that is meant for it. Does not cover: which signals init and
keeper ignore (init.c), when the daemon exits (`daemon.lifetime`).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from ...host import processes
from ...wire.manifest_records import SCRATCH

LIBRARY = Path(__file__).with_name("outside-signals.so")
#: The library's place on the kernel's own scratch tmpfs; a snapshot contains it.
INSIDE = f"{SCRATCH}/{LIBRARY.name}"

_VARIABLE = "LD_PRELOAD"
_KEPT_OUT = frozenset({signal.SIGTERM, signal.SIGHUP})
_NR_RT_SIGQUEUEINFO = 129
_SI_QUEUE = -1


class _SignalInfo(ctypes.Structure):
    """`siginfo_t` as sigqueue fills it (man 2 rt_sigqueueinfo)."""

    _fields_ = (
        ("signo", ctypes.c_int),
        ("errno", ctypes.c_int),
        ("code", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("pid", ctypes.c_int),
        ("uid", ctypes.c_uint),
        ("rest", ctypes.c_char * 104),
    )


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` with the library preloaded; the library removes itself from it before the program sees it."""
    return {**env, _VARIABLE: ":".join(filter(None, [INSIDE, env.get(_VARIABLE, "")]))}


def install(root: Path) -> None:
    """Copy the library to the place that `environment` names, below `root`, the kernel's root directory as seen from here."""
    target = root / INSIDE.lstrip("/")
    shutil.copyfile(LIBRARY, target)
    target.chmod(0o755)


def send_to_group(group: int, signum: int) -> None:
    """Send a signal to a kernel's process group, marked so that the library delivers it. Raises ProcessLookupError if the group is gone."""
    if signum not in _KEPT_OUT:
        os.killpg(group, signum)
        return
    members = [pid for pid in processes.every() if processes.process_group(pid) == group]
    if not members:
        raise ProcessLookupError(f"process group {group} is gone")
    info = _SignalInfo(signo=signum, code=_SI_QUEUE, pid=os.getpid(), uid=os.getuid())
    for pid in members:
        with suppress(ProcessLookupError):
            _queue(pid, signum, info)


def _queue(pid: int, signum: int, info: _SignalInfo) -> None:
    if _libc().syscall(_NR_RT_SIGQUEUEINFO, pid, signum, ctypes.byref(info)):
        error = ctypes.get_errno()
        raise OSError(error, f"signal {signum} to process {pid}: {os.strerror(error)}")


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
