"""Facts of a process's descriptors: what /proc shows (man proc, fdinfo), and what a duplicate tells (man pidfd_getfd).

Only sockets, pipes, terminals and Linux's own files without a name are duplicated: closing a duplicate of another file could wait
for a server of a file system that is stopped itself.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import select
import socket
import struct
import termios
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from ...host import processes
from ..tree.duplicates import duplicate
from . import socket_facts
from .fact_records import Values

_F_GETSIG, _F_SETSIG, _F_GETOWN_EX, _F_SETOWN_EX, _F_GET_SEALS = 11, 10, 16, 15, 1034
_F_ADD_SEALS, _F_SETPIPE_SZ, _F_GETPIPE_SZ = 1033, 1031, 1032
_OWNER, _COUNT = struct.Struct("=ii"), struct.Struct("=Q")
_TCGETS2, _TIOCGEXCL, _TIOCGPTLCK, _TIOCGPKT = 0x802C542A, 0x80045440, 0x80045439, 0x80045438
_TCSETS2, _TCSETS2_BYTES = 0x402C542B, 44
_REALTIME_CLOCKS = ("0", "8")
_TRIES, _SHORT_NS = 5, 1_000_000
_Setter = Callable[[int, Values, Mapping[int, int]], None]
#: Lines of fdinfo that name inodes, mounts and numbers of this boot, or that other facts tell.
_NOT_COMPARED = {
    "mnt_id",
    "ino",
    "tty-index",
    "eventfd-id",
    "Pid",
    "size",
    "count",
    "exp_name",
    "name",
}
#: A lock or lease: "1: POSIX  ADVISORY  READ 1234 08:01:5678 128 EOF"; "->" after the number is a process that waits.
_LOCK = re.compile(r"\d+: (POSIX|OFDLCK|FLOCK|LEASE) +\w+ +(READ|WRITE) +\S+ \S+ (\d+) (\d+|EOF)")
_PARTS_NOT_COMPARED = re.compile(r"\b(?:ino|sdev|pos|fhandle-\w+|f_handle):\S*")


def of_process(pid: int, descriptors: Iterable[int], seen: set[str]) -> dict[int, Values]:
    """Return the facts of these descriptors of a process. Sockets in `seen` are told already; new ones are added."""
    found = {}
    for number in descriptors:
        with suppress(OSError, ValueError):
            found[number] = _of_descriptor(pid, number, seen)
    return found


def sockets(pid: int, descriptors: Iterable[int]) -> set[str]:
    """Return the sockets among these descriptors, as `of_process` adds them to `seen`."""
    found = set()
    for number in descriptors:
        with suppress(OSError):
            link = os.readlink(f"/proc/{pid}/fd/{number}")
            if kind_of(link) == "socket":
                found.add(link)
    return found


def _of_descriptor(pid: int, number: int, seen: set[str]) -> Values:
    link = os.readlink(f"/proc/{pid}/fd/{number}")
    found = {"link": re.sub(r"\[\d+\]", "", link), **_of_fdinfo(pid, number)}
    kind = kind_of(link)
    if not kind or (kind == "socket" and link in seen):
        return found
    seen.add(link)
    copy = duplicate(pid, number)
    try:
        if kind == "socket":
            with socket.socket(fileno=os.dup(copy)) as end:
                found.update(socket_facts.of_socket(end))
        if kind == "terminal":
            found.update(_of_terminal(copy))
        else:  # what waits in a terminal is kept apart (`terminal_queues.py`)
            with suppress(OSError):
                found["unread"] = str(_ioctl(copy, termios.FIONREAD))
        found.update(_of_file(copy, kind))
    finally:
        os.close(copy)
    return {fact: value for fact, value in found.items() if value not in ("", "0")}


def kind_of(link: str) -> str:
    """Return what an open file is, if it may be duplicated; nothing else. `link`: its name in /proc."""
    if link.startswith("socket:["):
        return "socket"
    if link.startswith("pipe:["):
        return "pipe"
    if link.startswith("/memfd:"):
        return "memfd"
    if link in (
        "anon_inode:inotify",
        "anon_inode:[timerfd]",
        "anon_inode:[eventfd]",
        "anon_inode:[signalfd]",
    ):
        return link.removeprefix("anon_inode:").strip("[]")
    if link.startswith(("/dev/pts/", "/dev/ptmx")):
        return "terminal"
    return ""


def _of_fdinfo(pid: int, number: int) -> Values:
    found: Values = {}
    watches = []
    text, now = _at_a_time(f"/proc/{pid}/fdinfo/{number}")
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        if key in _NOT_COMPARED:
            continue
        if key in ("tfd", "inotify wd", "fanotify ino", "fanotify mnt_id"):
            watches.append(" ".join(_PARTS_NOT_COMPARED.sub("", line).split()))
        elif key == "lock":
            found |= _of_lock(rest)
        elif rest.strip():
            found[key] = rest.split()[-1] if key == "NSpid" else rest.strip()
    if watches:
        found["entries"] = "; ".join(sorted(watches))
    if _is_absolute(found):
        found["fires at"] = str(now + _nanoseconds(found.pop("it_value")))
    return found


def _of_lock(text: str) -> Values:
    """Return the fact that a line of fdinfo tells of a lock, without its first word. A lock that a process waits for is none."""
    match = _LOCK.search(text)
    return {f"lock {match[1]} {match[3]} {match[4]}": match[2]} if match else {}


def _at_a_time(path: str) -> tuple[str, int]:
    """Return the content of a file and when it was read, as exactly as a busy machine allows."""
    text, best, when = "", 0, 0
    for _ in range(_TRIES):
        begun = time.time_ns()
        with open(path, "rb", buffering=0) as file:
            read = file.read().decode("utf-8", "surrogateescape")
        took = time.time_ns() - begun
        if not text or took < best:
            text, best, when = read, took, begun + took // 2
        if took < _SHORT_NS:
            break
    return text, when


def _is_absolute(timer: Values) -> bool:
    """Return whether a timer waits for a time of the machine's clock: CLOCK_REALTIME with TFD_TIMER_ABSTIME."""
    return (
        timer.get("clockid") in _REALTIME_CLOCKS
        and bool(int(timer.get("settime flags", "0"), 8) & 1)
        and _nanoseconds(timer.get("it_value", "(0, 0)")) > 0
    )


def _nanoseconds(pair: str) -> int:
    seconds, nanoseconds = map(int, pair.strip("()").split(","))
    return seconds * 1_000_000_000 + nanoseconds


def set_of_descriptor(
    pid: int, number: int, fact: str, values: Values, pids: Mapping[int, int]
) -> bool:
    """Set a fact of a descriptor to that of `values` again; return whether it can be set. Raises OSError, ValueError.

    `pids`: pids here, by those in the tree's namespace.
    """
    setter = _SETTERS.get(fact)
    if setter is None and fact.partition(" ")[0] not in ("option", "membership"):
        return False
    copy = duplicate(pid, number)
    try:
        if setter is not None:
            setter(copy, values, pids)
            return True
        with socket.socket(fileno=os.dup(copy)) as end:
            return socket_facts.set_of_socket(end, fact, values.get(fact, ""))
    finally:
        os.close(copy)


def _set_timer(copy: int, values: Values, pids: Mapping[int, int]) -> None:
    at, interval = int(values["fires at"]), _nanoseconds(values.get("it_interval", "(0, 0)"))
    times = [*divmod(interval, 1_000_000_000), *divmod(at, 1_000_000_000)]
    libc = ctypes.CDLL(None, use_errno=True)
    flags = int(values["settime flags"], 8)
    if libc.timerfd_settime(copy, flags, struct.pack("=4q", *times), None) < 0:
        raise OSError(ctypes.get_errno(), "timerfd_settime")


def _set_owner(copy: int, values: Values, pids: Mapping[int, int]) -> None:
    kind, owner = map(int, values.get("signal owner", "0 0").split())
    # A stranger's snapshot must not send signals to processes that are not its own.
    fcntl.fcntl(copy, _F_SETOWN_EX, _OWNER.pack(kind, pids[owner] if owner else 0))


def _set_settings(copy: int, values: Values, pids: Mapping[int, int]) -> None:
    fcntl.ioctl(copy, _TCSETS2, bytes.fromhex(values["terminal settings"]))


def _set_window(copy: int, values: Values, pids: Mapping[int, int]) -> None:
    fcntl.ioctl(copy, termios.TIOCSWINSZ, bytes.fromhex(values.get("window", "00" * 8)))


def _set_flags(copy: int, values: Values, pids: Mapping[int, int]) -> None:
    fcntl.fcntl(copy, fcntl.F_SETFL, int(values["flags"], 8) & ~os.O_CLOEXEC)


def _set_count(copy: int, values: Values, pids: Mapping[int, int]) -> None:
    if select.select([copy], [], [], 0)[0]:
        os.read(copy, _COUNT.size)  # it is 0 then
    os.write(copy, _COUNT.pack(int(values.get("eventfd-count", "0"), 16)))


def _by_fcntl(fact: str, command: int) -> _Setter:
    def set_it(copy: int, values: Values, pids: Mapping[int, int]) -> None:
        fcntl.fcntl(copy, command, int(values.get(fact, "0")))

    return set_it


_SETTERS: dict[str, _Setter] = {
    "eventfd-count": _set_count,
    "fires at": _set_timer,
    "it_value": _set_timer,
    "signal owner": _set_owner,
    "signal": _by_fcntl("signal", _F_SETSIG),
    "pipe bytes": _by_fcntl("pipe bytes", _F_SETPIPE_SZ),
    "seals": _by_fcntl("seals", _F_ADD_SEALS),
    "flags": _set_flags,
    "terminal settings": _set_settings,
    "window": _set_window,
}


def _of_file(copy: int, kind: str) -> Values:
    found = {}
    if kind in ("socket", "pipe"):
        poll = select.poll()
        poll.register(copy, select.POLLRDHUP | select.POLLPRI)
        found["ends"] = next((str(events) for _, events in poll.poll(0)), "")
    with suppress(OSError):
        owner_kind, owner = _OWNER.unpack(fcntl.fcntl(copy, _F_GETOWN_EX, bytes(_OWNER.size)))
        if owner:
            # It is the id of a thread, a process or a group, as we see it.
            found["signal owner"] = f"{owner_kind} {processes.nspid(owner) or 0}"
    with suppress(OSError):
        found["signal"] = str(fcntl.fcntl(copy, _F_GETSIG))
    if kind == "pipe":
        found["pipe bytes"] = str(fcntl.fcntl(copy, _F_GETPIPE_SZ))
    if kind == "memfd":
        found["seals"] = str(fcntl.fcntl(copy, _F_GET_SEALS))
    return found


def _of_terminal(copy: int) -> Values:
    found = {"terminal settings": fcntl.ioctl(copy, _TCGETS2, bytes(_TCSETS2_BYTES)).hex()}
    with suppress(OSError):
        found["window"] = fcntl.ioctl(copy, termios.TIOCGWINSZ, bytes(8)).hex()
    for fact, request in (
        ("line discipline", termios.TIOCGETD),
        ("exclusive", _TIOCGEXCL),
        ("locked", _TIOCGPTLCK),
        ("packets", _TIOCGPKT),
    ):
        with suppress(OSError):
            found[fact] = str(_ioctl(copy, request))
    for fact, request in (("foreground group", termios.TIOCGPGRP), ("session", 0x5429)):
        with suppress(OSError):
            found[fact] = str(processes.nspid(_ioctl(copy, request)) or 0)
    return found


def _ioctl(descriptor: int, request: int) -> int:
    (number,) = struct.unpack("=i", fcntl.ioctl(descriptor, request, bytes(4)))
    return int(number)
