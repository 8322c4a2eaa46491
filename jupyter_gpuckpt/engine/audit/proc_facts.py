"""Facts of processes and threads that /proc and system calls by pid show (man proc, ioprio_get, sched_setattr)."""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

from ...host import processes
from .records import Values

_NR_SCHED_SETATTR, _NR_SCHED_GETATTR, _NR_IOPRIO_SET, _NR_IOPRIO_GET = 314, 315, 251, 252
_IOPRIO_WHO_PROCESS = 1
#: Bytes of `struct sched_attr` with its utilization limits (include/uapi/linux/sched/types.h).
_SCHED_ATTR_BYTES = 56
#: Fields of /proc/PID/status that belong to the whole process, and to each thread.
_OF_PROCESS = (
    "Umask",
    "Threads",
    "NSpgid",
    "NSsid",
    "VmLck",
    "THP_enabled",
    "untag_mask",
    "SigIgn",
    "SigCgt",
    "ShdPnd",
)
_OF_THREAD = (
    "Name",
    "Uid",
    "Gid",
    "Groups",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "SigBlk",
    "SigPnd",
    "x86_Thread_features",
)
_WANTED = frozenset({*_OF_PROCESS, *_OF_THREAD, "NSpid", "NStgid"})
_STATUS_BYTES = 1 << 16
#: Namespaced values: the last number is the one that the process sees.
_NAMESPACED = frozenset({"NSpgid", "NSsid"})
_FILES = ("coredump_filter", "oom_score_adj")
_TARGET = re.compile(r"\b(pid|tid)\.(\d+)")
_NICE = re.compile(r"nice (-?\d+)")


def status(tid: int) -> Values:
    """Return the fields of /proc/TID/status that are facts, or that name ids. Raises OSError if there is no such thread."""
    with open(f"/proc/{tid}/status", "rb", buffering=0) as file:
        lines = file.read(_STATUS_BYTES).decode("utf-8", "surrogateescape").split("\n")
    found = {}
    for line in lines:
        name, _, value = line.partition(":\t")
        if name in _WANTED:
            found[name] = value.strip()
    return found


def of_process(pid: int, fields: Values) -> Values:
    """Return the facts of a process. `fields`: its `status`."""
    found = {name: fields[name] for name in _OF_PROCESS if name in fields}
    for name in _NAMESPACED & found.keys():
        found[name] = found[name].split()[-1]
    folder = Path(f"/proc/{pid}")
    for name in _FILES:
        with suppress(OSError):
            found[name] = (folder / name).read_text().strip()
    with suppress(OSError):
        for line in (folder / "limits").read_text().splitlines()[1:]:
            # "Max open files            1024                 4096                 files"
            found[line[:25].strip()] = " ".join(line[25:].split()[:2])
    with suppress(OSError):
        if nice := _NICE.search((folder / "autogroup").read_text()):
            found["autogroup"] = nice[1]
    with suppress(OSError):
        timers = " ".join((folder / "timers").read_text().split())
        # A timer names the process or thread that its signal goes to.
        found["timers"] = _TARGET.sub(lambda m: f"{m[1]}.{processes.nspid(int(m[2]))}", timers)
    for name in ("cwd", "root"):
        with suppress(OSError):
            found[name] = os.readlink(folder / name)
    with suppress(OSError, IndexError):
        # The third field is the first after the name. tty_nr and exit_signal are fields 7 and 38.
        after_name = (
            (folder / "stat").read_text(errors="surrogateescape").rpartition(")")[2].split()
        )
        found["terminal"], found["exit signal"] = after_name[4], after_name[35]
    return {fact: value for fact, value in found.items() if value not in ("", "0")}


def of_thread(tid: int, fields: Values) -> Values:
    """Return the facts of a thread. `fields`: its `status`."""
    found = {name: fields[name] for name in _OF_THREAD if fields.get(name)}
    with suppress(OSError):
        found["ioprio"] = str(_call(_NR_IOPRIO_GET, _IOPRIO_WHO_PROCESS, tid))
    with suppress(OSError):
        buffer = ctypes.create_string_buffer(_SCHED_ATTR_BYTES)
        _call(_NR_SCHED_GETATTR, tid, ctypes.addressof(buffer), _SCHED_ATTR_BYTES, 0)
        found["scheduling"] = buffer.raw.hex()
    return found


def set_of_process(pid: int, fact: str, value: str) -> bool:
    """Set a fact of a process again; return whether it can be set. Raises OSError, ValueError."""
    if fact in ("coredump_filter", "oom_score_adj"):
        text = f"{int(value, 16):#x}" if fact == "coredump_filter" else str(int(value))
        Path(f"/proc/{pid}/{fact}").write_text(text)
    elif fact == "autogroup":
        Path(f"/proc/{pid}/autogroup").write_text(str(int(value)))
    else:
        return False
    return True


def set_of_thread(tid: int, fact: str, value: str) -> bool:
    """Set a fact of a thread again; return whether it can be set. Raises OSError, ValueError."""
    if fact == "ioprio":
        _call(_NR_IOPRIO_SET, _IOPRIO_WHO_PROCESS, tid, int(value))
    elif fact == "scheduling":
        attributes = bytes.fromhex(value)
        buffer = ctypes.create_string_buffer(attributes, _SCHED_ATTR_BYTES)
        _call(_NR_SCHED_SETATTR, tid, ctypes.addressof(buffer), 0)
    else:
        return False
    return True


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: int) -> int:
    result = int(_libc().syscall(number, *map(ctypes.c_long, arguments)))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
