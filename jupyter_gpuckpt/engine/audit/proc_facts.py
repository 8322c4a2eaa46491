"""Facts of processes and threads that /proc and system calls by pid show (man proc, ioprio_get, sched_setattr)."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ...host import processes
from .fact_records import Values

_NR_SCHED_SETATTR, _NR_SCHED_GETATTR, _NR_IOPRIO_SET, _NR_IOPRIO_GET = 314, 315, 251, 252
_IOPRIO_WHO_PROCESS = 1
_NR_KCMP, _KCMP_FILES, _KCMP_FS = 312, 2, 3
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
_IDS = re.compile(rb"^NStgid:\t.*?(\d+)$\n.*?^NSpid:\t.*?(\d+)$", re.MULTILINE)
_MOST_BYTES = 1 << 16
#: Namespaced values: the last number is the one that the process sees.
_NAMESPACED = frozenset({"NSpgid", "NSsid"})
#: Facts of threads that do not share them with their process.
OWN_CWD, OWN_UMASK = "own working directory", "own umask"
OWN_DESCRIPTORS = "own descriptors"
#: A fact of processes: the areas that are locked page by page when they are used (mlock2, mlockall), as `start-end ...`.
LOCKED_WHEN_USED = "locked when used"
_NOTHING_LOCKED = "0 kB"
_FILES = ("coredump_filter", "oom_score_adj")
_TARGET = re.compile(r"\b(pid|tid)\.(\d+)")
_NICE = re.compile(r"nice (-?\d+)")


class Look(NamedTuple):
    """What /proc and Linux show of a thread, as it was read."""

    status: bytes
    ioprio: int
    scheduling: bytes
    #: Its working directory, if it shares that and the umask with no other thread; else nothing.
    own_cwd: str
    has_own_descriptors: bool


def look(pid: int, tid: int) -> Look:
    """Read what `of_thread` needs; this is quick, because the thread is held meanwhile. Raises OSError if there is no such thread."""
    attributes = ctypes.create_string_buffer(_SCHED_ATTR_BYTES)
    _call(_NR_SCHED_GETATTR, tid, ctypes.addressof(attributes), _SCHED_ATTR_BYTES, 0)
    ioprio = _call(_NR_IOPRIO_GET, _IOPRIO_WHO_PROCESS, tid)
    own_cwd = "" if _shares(pid, tid, _KCMP_FS) else os.readlink(f"/proc/{tid}/cwd")
    has_own_descriptors = not _shares(pid, tid, _KCMP_FILES)
    status = _read(f"/proc/{tid}/status")
    return Look(status, ioprio, attributes.raw, own_cwd, has_own_descriptors)


def _shares(pid: int, tid: int, kind: int) -> bool:
    """Return whether a thread shares this with the first one of its process; True where Linux does not tell (man kcmp, unshare)."""
    try:
        return tid == pid or _call(_NR_KCMP, pid, tid, kind, 0, 0) == 0
    except OSError:
        return True


def ids(shown: Look) -> tuple[int, int]:
    """Return the ids of a thread's process and of the thread in their own PID namespace."""
    found = _IDS.search(shown.status)
    if found is None:
        raise ValueError("the status of a thread has no ids")
    return int(found[1]), int(found[2])


def status(tid: int) -> Values:
    """Return the fields of /proc/TID/status that are facts, or that name ids. Raises OSError if there is no such thread."""
    return _fields(_read(f"/proc/{tid}/status"))


def _fields(shown: bytes) -> Values:
    found = {}
    for line in shown.decode("utf-8", "surrogateescape").split("\n"):
        name, _, value = line.partition(":\t")
        if name in _WANTED:
            found[name] = value.strip()
    return found


def _read(path: str) -> bytes:
    """Return the content of a file of /proc; each of these files is read at once, or not at all."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)


def _text(pid: int, name: str) -> str:
    return _read(f"/proc/{pid}/{name}").decode("utf-8", "surrogateescape")


def of_process(pid: int, fields: Values) -> Values:
    """Return the facts of a process. `fields`: its `status`."""
    found = {name: fields[name] for name in _OF_PROCESS if name in fields}
    for name in _NAMESPACED & found.keys():
        found[name] = found[name].split()[-1]
    for name in _FILES:
        with suppress(OSError):
            found[name] = _text(pid, name).strip()
    with suppress(OSError):
        for line in _text(pid, "limits").splitlines()[1:]:
            # "Max open files            1024                 4096                 files"
            found[line[:25].strip()] = " ".join(line[25:].split()[:2])
    with suppress(OSError):
        if nice := _NICE.search(_text(pid, "autogroup")):
            found["autogroup"] = nice[1]
    with suppress(OSError):
        timers = " ".join(_text(pid, "timers").split())
        # A timer names the process or thread that its signal goes to.
        found["timers"] = _TARGET.sub(lambda m: f"{m[1]}.{processes.nspid(int(m[2]))}", timers)
    if found.get("VmLck") != _NOTHING_LOCKED:
        areas = processes.flagged_areas(pid, "lf")
        found[LOCKED_WHEN_USED] = " ".join(f"{start:x}-{end:x}" for start, end in areas)
    for name in ("cwd", "root"):
        with suppress(OSError):
            found[name] = os.readlink(f"/proc/{pid}/{name}")
    with suppress(OSError, IndexError):
        # The third field is the first after the name. tty_nr and exit_signal are fields 7 and 38.
        after_name = _text(pid, "stat").rpartition(")")[2].split()
        found["terminal"], found["exit signal"] = after_name[4], after_name[35]
    return {fact: value for fact, value in found.items() if value not in ("", "0")}


def of_thread(shown: Look) -> Values:
    """Return the facts of a thread."""
    fields = _fields(shown.status)
    found = {name: fields[name] for name in _OF_THREAD if fields.get(name)}
    found |= {"ioprio": str(shown.ioprio), "scheduling": shown.scheduling.hex()}
    if shown.own_cwd:
        found |= {OWN_CWD: shown.own_cwd, OWN_UMASK: fields.get("Umask", "")}
    if shown.has_own_descriptors:
        found[OWN_DESCRIPTORS] = "1"
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


def host_pids(pids: Collection[int]) -> dict[int, int]:
    """Return the pids of processes here by those in their own namespace."""
    return {nspid: pid for pid in pids if (nspid := processes.nspid(pid)) is not None}
