"""Facts about processes, read from /proc. Where a docstring says "its", it means the process with the pid of the first argument.

Processes start and end at any time. For a process that has ended (or may not be examined) every function here returns None or an
empty value. It raises OSError only if no file can be opened: nothing is known then, also not that a process has ended. Pids are
those of the PID namespace to which /proc belongs; sizes are in bytes. Man page: proc(5).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import is_descriptor_limit
from . import memory_limits

PROC = Path("/proc")
_DELETED = " (deleted)"
#: PF_EXITING and PF_SIGNALED in the flags of /proc/PID/stat (include/linux/sched.h).
_ENDING = 0x4 | 0x400


class Mapping(NamedTuple):
    """One line of /proc/PID/maps. `path` is empty for anonymous memory, but may be `[heap]`."""

    start: int
    end: int
    perms: str
    offset: int
    dev: str
    inode: int
    path: str

    @property
    def private(self) -> bool:
        """Whether writes stay in this process (MAP_PRIVATE)."""
        return self.perms[3:4] == "p"


class Memory(NamedTuple):
    """The memory of a process in RAM.

    `private_bytes` and `shared_bytes` count its pages by whether another process maps them too;
    `proportional_bytes` divides shared pages by how many map them, so it adds up over a tree.
    """

    private_bytes: int = 0
    shared_bytes: int = 0
    proportional_bytes: int = 0


def every() -> list[int]:
    """Return all processes of this PID namespace, in ascending order."""
    return sorted(_numbers(PROC))


def exists(pid: int) -> bool:
    """Return whether there is such a process, zombies included."""
    return (PROC / str(pid)).exists()


def alive(pid: int) -> bool:
    """Return whether `pid` exists and is no zombie."""
    return state(pid) not in {None, "Z", "X", "x"}


def still_alive(pid: int, start: int | None) -> bool:
    """Return whether the process that had this pid and `start_time` is alive: a later one may have its pid."""
    return start_time(pid) == start and alive(pid)


def is_ending(pid: int) -> bool:
    """Return whether a process has ended or is ending. Linux may need seconds to free its memory; until then it still has a state.

    All its threads must be ending, because a process lives on if only its first thread has ended.
    """
    return all(_is_thread_ending(pid, tid) for tid in threads(pid))


def _is_thread_ending(pid: int, tid: int) -> bool:
    # The signals are read first: a thread takes SIGKILL from them before it has the flags.
    signals = _fields(_read(pid, f"task/{tid}/status") or "")
    pending = int(signals.get("SigPnd", "0"), 16) | int(signals.get("ShdPnd", "0"), 16)
    stat = _stat(pid, f"task/{tid}/stat")
    killed = bool(pending & 1 << (signal.SIGKILL - 1))
    return killed or stat is None or stat[0] in {"Z", "X", "x"} or bool(int(stat[6]) & _ENDING)


def start_time(pid: int) -> int | None:
    """Return its start time, in clock ticks since boot; pid and start time together identify a process uniquely."""
    stat = _stat(pid)
    return int(stat[19]) if stat else None


def state(pid: int) -> str | None:
    """Return its state as a letter: R running, S and D sleeping, T stopped, t traced, Z zombie."""
    stat = _stat(pid)
    return stat[0] if stat else None


def parent(pid: int) -> int | None:
    """Return its parent's pid; 0 when the parent is outside this PID namespace."""
    stat = _stat(pid)
    return int(stat[1]) if stat else None


def process_group(pid: int) -> int | None:
    """Return its process group."""
    stat = _stat(pid)
    return int(stat[2]) if stat else None


def session(pid: int) -> int | None:
    """Return its session, as the pid of the session's leader."""
    stat = _stat(pid)
    return int(stat[3]) if stat else None


def name(pid: int) -> str | None:
    """Return its name, at most 15 characters (/proc/PID/comm)."""
    text = _read(pid, "comm")
    return None if text is None else text.rstrip("\n")


def arguments(pid: int) -> list[str]:
    """Return its command line; empty for zombies and Linux's kernel threads."""
    text = _read(pid, "cmdline")
    return text.rstrip("\0").split("\0") if text else []


def environment(pid: int) -> dict[str, str]:
    """Return the environment with which its program was started; empty where that may not be read."""
    entries = (_read(pid, "environ") or "").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def status(pid: int) -> dict[str, str]:
    """Return the fields of /proc/PID/status as text, by name without the colon."""
    return _fields(_read(pid, "status") or "")


def uid(pid: int) -> int | None:
    """Return its effective user id."""
    ids = status(pid).get("Uid", "").split()
    return int(ids[1]) if len(ids) > 1 else None


def nspid(pid: int) -> int | None:
    """Return its pid in the innermost PID namespace that it is in; `pid` itself if that is this one."""
    ids = status(pid).get("NSpid", "").split()
    return int(ids[-1]) if ids else None


def namespace(pid: int, kind: str) -> str | None:
    """Return its namespace of `kind` (pid, mnt, net, user, time ...), like `pid:[4026531836]`."""
    try:
        return os.readlink(PROC / str(pid) / "ns" / kind)
    except OSError:
        return None


def threads(pid: int) -> list[int]:
    """Return the ids of its threads, in ascending order."""
    return sorted(_numbers(PROC / str(pid) / "task"))


def living_thread(pid: int) -> int:
    """Return its main thread; another thread if that has ended, because then it shows no memory and descriptors."""
    tids = [pid, *threads(pid)]
    return next((tid for tid in tids if state(tid) not in (None, "Z", "X")), pid)


def context_switches(pid: int) -> dict[int, int]:
    """Return each thread's number of context switches: if two counts are equal, the thread did not run in between."""
    counts = {}
    for tid in threads(pid):
        fields = _fields(_read(pid, f"task/{tid}/status") or "")
        if "voluntary_ctxt_switches" in fields:
            counts[tid] = int(fields["voluntary_ctxt_switches"]) + int(
                fields["nonvoluntary_ctxt_switches"]
            )
    return counts


def processor_ticks(pid: int) -> int:
    """Return the CPU time of a process and its descendants so far, in clock ticks."""
    total = 0
    for member in (pid, *descendants(pid)):
        if stat := _stat(member):
            total += int(stat[11]) + int(stat[12])
    return total


def processor_seconds(pid: int) -> float:
    """Return the CPU time of a process and its children so far, in seconds, including the children that have ended."""
    ticks = 0
    for member in (pid, *children(pid)):
        if stat := _stat(member):
            ticks += sum(map(int, stat[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def thread_ticks(tid: int) -> int | None:
    """Return the CPU time of one thread so far, in clock ticks; None if it has ended."""
    # /proc/TID/stat of a main thread counts its whole process.
    stat = _stat(tid, f"task/{tid}/stat")
    return int(stat[11]) + int(stat[12]) if stat else None


def ancestors(pid: int) -> list[int]:
    """Return the parent of a process, its parent, and so on."""
    found: list[int] = []
    while (above := parent(found[-1] if found else pid)) and above not in found:
        found.append(above)
    return found


def children(pid: int) -> list[int]:
    """Return its children, zombies included, in ascending order."""
    found: set[int] = set()
    listed = False
    for tid in threads(pid):
        # Linux lists a child with the thread that forked it.
        text = _read(pid, f"task/{tid}/children")
        if text is not None:
            listed = True
            found.update(map(int, text.split()))
    if not listed and exists(pid):  # a kernel without CONFIG_PROC_CHILDREN
        found.update(other for other in _numbers(PROC) if parent(other) == pid)
    return sorted(found)


def descendants(pid: int) -> list[int]:
    """Return its children, their children and so on, without `pid`; parents come before their children."""
    found, left = list[int](), [pid]
    while left:
        its_own = children(left.pop())
        found += its_own
        left += its_own
    return found


def descriptors(pid: int) -> dict[int, str]:
    """Return the targets of its descriptors: a path, `socket:[123]`, `anon_inode:[eventpoll]` ..."""
    folder = PROC / str(pid) / "fd"
    found = {}
    for fd in sorted(_numbers(folder)):
        try:
            found[fd] = os.readlink(folder / str(fd))
        except OSError:  # closed meanwhile
            continue
    return found


def deleted_files(pid: int) -> Iterator[tuple[str, str]]:
    """Yield the former name of every deleted file that it has open or mapped, and a path of the file (man proc)."""
    for number, link in descriptors(pid).items():
        if link.endswith(_DELETED):
            yield link.removesuffix(_DELETED), f"/proc/{pid}/fd/{number}"
    for area in maps(pid):
        if area.path.endswith(_DELETED):
            file = f"/proc/{pid}/map_files/{area.start:x}-{area.end:x}"
            yield area.path.removesuffix(_DELETED), file


def maps(pid: int) -> list[Mapping]:
    """Return its memory mappings in ascending order; empty for a zombie.

    Names are escaped as in /proc: a newline in a file name is `\\012`.
    """
    return [_mapping(line) for line in (_read(pid, "maps") or "").splitlines()]


def flagged_areas(pid: int, *flags: str) -> list[tuple[int, int]]:
    """Return start and end of its memory areas that have one of these VmFlags. Linux walks its page tables for this."""
    content, found, current = _read(pid, "smaps") or "", list[tuple[int, int]](), (0, 0)
    if not any(f" {flag}" in content for flag in flags):
        return []  # true of most processes; the text has 250 KB
    for line in content.splitlines():
        head = line.split(" ", 1)[0]
        if head == "VmFlags:":
            if not set(flags).isdisjoint(line.split()[1:]):
                found.append(current)
        elif not head.endswith(":"):
            start, _, end = head.partition("-")
            current = (int(start, 16), int(end, 16))
    return found


def programs(pid: int) -> set[str]:
    """Return the current paths of the programs and libraries that it has mapped."""
    return {area.path for area in maps(pid) if "x" in area.perms and area.path.startswith("/")}


def memory(pid: int) -> Memory:
    """Return its memory; zeros where that may not be read (it takes the right to ptrace)."""
    fields = _fields(_read(pid, "smaps_rollup") or "")

    def size(*names: str) -> int:
        return 1024 * sum(int(fields[name].split()[0]) for name in names if name in fields)

    return Memory(
        private_bytes=size("Private_Clean", "Private_Dirty", "Private_Hugetlb"),
        shared_bytes=size("Shared_Clean", "Shared_Dirty", "Shared_Hugetlb"),
        proportional_bytes=size("Pss", "Private_Hugetlb"),
    )


#: Fields of /proc/PID/status: private memory (even if a forked child still shares it), and memory shared with others.
PRIVATE, SHARED = ("RssAnon", "VmSwap"), ("RssShmem",)


def resident_bytes(pid: int, names: Sequence[str] = (*PRIVATE, *SHARED)) -> int:
    """Return its anonymous and shared memory in RAM and swap; 0 if there is no such process.

    Linux always keeps these counts, so reading them costs microseconds, where `memory` walks the page tables. Memory that
    several processes share counts for each of them.
    """
    fields = status(pid)
    return 1024 * sum(int(fields[name].split()[0]) for name in names if name in fields)


def mem_available(pid: int | None = None) -> int:
    """Return how many bytes of memory are available: MemAvailable, or less where a cgroup limits this process or `pid`."""
    return AvailableMemory(pid).read_bytes()


class AvailableMemory:
    """A reader of the available memory that looks up the control groups only once, because that takes most of the time."""

    def __init__(self, pid: int | None = None) -> None:
        memberships = [PROC / str(process) / "cgroup" for process in ("self", pid) if process]
        found = (memory_limits.groups(membership=path) for path in memberships)
        self._groups = dict.fromkeys(group for groups in found for group in groups)

    def read_bytes(self) -> int:
        """Return how many bytes are available now."""
        _, free = machine_memory()
        headroom = memory_limits.headroom(self._groups)
        return max(0, free if headroom is None else min(free, headroom))


def machine_memory() -> tuple[int, int]:
    """Return how many bytes of memory this machine has, and how many of them are available."""
    fields = _fields((PROC / "meminfo").read_text())
    total, available = (
        1024 * int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable")
    )
    return total, available


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that refers to this process even when its pid is reused; the caller closes it.

    The result is None if the process is gone. The descriptor of a zombie is readable at once.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def send_signal(pidfd: int, signum: int) -> bool:
    """Send a signal; return False when the process is gone. Raises PermissionError."""
    try:
        signal.pidfd_send_signal(pidfd, signum)
    except ProcessLookupError:
        return False
    return True


def _read(pid: int, path: str) -> str | None:
    try:
        # A save reads thousands of these files while the kernel stands still; pathlib would take most of the time.
        with open(f"{PROC}/{pid}/{path}", "rb", buffering=0) as file:
            data = file.read()
    except OSError as error:
        if is_descriptor_limit(error):
            raise
        return None
    return data.decode("utf-8", "surrogateescape")


def _stat(pid: int, path: str = "stat") -> list[str] | None:
    """Return the fields of /proc/PID/stat, or of a thread's, from the third (state) on."""
    text = _read(pid, path)
    # The name, the second field, is in parentheses and may itself contain spaces and parentheses.
    return text.rpartition(")")[2].split() if text else None


def _fields(text: str) -> dict[str, str]:
    fields = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields[key] = value.strip()
    return fields


def _numbers(folder: Path) -> Iterator[int]:
    try:
        names = os.listdir(folder)
    except OSError as error:
        if is_descriptor_limit(error):
            raise
        return
    yield from (int(entry) for entry in names if entry.isdecimal())


def _mapping(line: str) -> Mapping:
    addresses, perms, offset, dev, inode, *path = line.split(None, 5)
    start, _, end = addresses.partition("-")
    return Mapping(
        int(start, 16),
        int(end, 16),
        perms,
        int(offset, 16),
        dev,
        int(inode),
        path[0] if path else "",
    )
