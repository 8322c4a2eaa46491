"""Checks before a save changes anything: whether it can work, and by which method."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from ..errors import FreezeFailed, KernelNotCheckpointable, StoreFull
from ..host import commands, fuse, limits, processes, seccomp
from .criu import deleted_files, hidden_pages
from .gpu.ferry import ferry_windows
from .gpu.ferry.ferry_windows import NO_NEEDS, RamNeeds
from .settings import EngineSettings
from .tree import standstill, user_namespaces
from .tree.launch import pids
from .tree.tree import Tree

_MB = 1 << 20
#: Linux's name for memory of memfd_secret, which lies in no folder.
_WITHOUT_FOLDER = "/secretmem"
#: How many descriptors CRIU's code in a process opens at most (3), and some room.
_CRIUS_DESCRIPTORS = 5
_SMALLEST_GHOST_LIMIT = 256 * _MB
#: How many terminals CRIU opens until it has the one with the number that it needs (criu/tty.c, pty_open_ptmx_index).
_PTMX_TRIES = 32
#: The beginnings of links to what CRIU opens in a restore whatever the descriptor's flags are.
_RESTORED_AS_OPEN = ("pipe:[", "/dev/pts/", "/dev/ptmx")
#: In the text of man proc_pid_fdinfo.
_FLAGS = re.compile(r"^flags:\s*([0-7]+)$", re.MULTILINE)
#: In the same text, for a terminal's /dev/ptmx.
_TTY_INDEX = re.compile(r"^tty-index:\s*(\d+)$", re.MULTILINE)
#: The types of file systems that ask a server (man proc_pid_mountinfo).
_REMOTE = re.compile(r"fuse(\..*|blk)?|nfs4?|cifs|smb3|9p|ceph|afs|lustre|gpfs|beegfs")
#: Linux writes a blank in a name as \\040.
_ESCAPED = re.compile(r"\\([0-7]{3})")
_ANSWER_SECONDS = 5.0
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "user", "uts")


class Plan(msgspec.Struct, frozen=True):
    """A plan for freezing a tree. Sizes are in bytes."""

    method: str  # skeleton | plain
    ghost_limit_bytes: int
    private_bytes: int
    shared_bytes: int
    private_shm: bool
    ram_needs: RamNeeds = NO_NEEDS
    #: The names of the kernel's own listening unix sockets.
    own_sockets: Sequence[str] = ()


def plan(
    tree: Tree,
    settings: EngineSettings,
    *,
    private_shm: bool,
    own_sockets: Sequence[str] = (),
    stop: bool,
    gpu_bytes: int,
) -> Plan:
    """Examine the tree and choose the method. Raises FreezeFailed or StoreFull when there is not enough memory or disk space."""
    members = pids(tree)
    standstill.refuse_unended(tree)
    _refuse_servers(members)
    _refuse_silent(tree, members)
    _refuse_sandboxes(tree, members)
    _refuse_namespaces(tree, members)
    _refuse_closed(members)
    _refuse_closed_folders(tree, members)
    _refuse_terminals(members)
    _refuse_names(members)
    _refuse_full_tables(members)
    by_process = {pid: processes.resident_bytes(pid, processes.PRIVATE) for pid in members}
    private = sum(by_process.values())
    shared = sum(processes.resident_bytes(pid, processes.SHARED) for pid in members)
    visible = min(private, sum(hidden_pages.visible_bytes(pid) for pid in members))
    large = visible >= limits.largest_skeleton_bytes()
    method = "plain" if settings.plain or large else "skeleton"
    # Memory is needed for staged GPU memory, CRIU's copies of shared memory and, for a save, the pages that the kernel rewrites
    # meanwhile and copies of all other processes' memory: only the kernel gets a ghost.
    kernel = by_process.get(tree.kernel_pid, 0)
    copies = 0 if stop else kernel // 8 + private - kernel
    beside = shared + copies + settings.headroom_bytes
    if user_namespaces.has_own(tree.init_pid):
        beside += deleted_files.shared_bytes(members)
    needs = RamNeeds(beside, gpu_bytes)
    needed = needs.most_bytes
    available = processes.mem_available(tree.kernel_pid)
    if needed > available and stop:
        needed -= min(gpu_bytes, ferry_windows.spared([ferry_windows.usable_bytes(tree)]))
    if needed > available:
        raise FreezeFailed(
            f"There is not enough memory to save the kernel: about {needed // _MB} MB are needed, "
            f"{available // _MB} MB are free.",
            hint="Free memory (or GPU memory that is cached) and try again.",
            details=f"private {private}, shared {shared}, GPU {gpu_bytes}, available {available} bytes",
        )
    if method == "plain":
        settings.spill_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        free = shutil.disk_usage(settings.spill_dir).free
        if private + shared > free:
            raise StoreFull(
                f"The disk is too full: the kernel's memory is {(private + shared) // _MB} MB, and {free // _MB} MB are free.",
                hint=f"Free space where {settings.spill_dir} lies, or raise the limit of open files.",
            )
    ghosts = _ghost_limit(members)
    return Plan(method, ghosts, private, shared, private_shm, needs, own_sockets)


def _refuse_silent(tree: Tree, members: list[int]) -> None:
    """Raise FreezeFailed if one of the file systems of which these processes have files open or mapped does not answer.

    CRIU would wait for it while the tree stands still. Each is asked for its size by a program that can be left behind: Linux may
    not end it.
    """
    mounts = _remote_mounts(tree)
    for minor, file in fuse.files(members).items() if mounts else ():
        if minor in mounts and not _answers(tree, mounts[minor][0]):
            folder, kind = mounts[minor]
            raise FreezeFailed(
                f"The kernel has {file} open, and the file system at {folder} ({kind}) does not answer.",
                hint="Try again when its server answers. If it never will, unmount it by force (`umount --force --lazy`).",
                details=f"`stat --file-system` of {folder} did not end within {_ANSWER_SECONDS} s",
            )


def _remote_mounts(tree: Tree) -> dict[int, tuple[str, str]]:
    """Return folder and type of each mounted file system that asks a server, by the minor number of its device."""
    found = {}
    with open(f"/proc/{tree.init_pid}/mountinfo", errors="surrogateescape") as lines:
        for line in lines:
            mount, _, system = line.partition(" - ")
            kind = system.split()[0]
            if _REMOTE.fullmatch(kind):
                device, _, folder = mount.split()[2:5]
                folder = _ESCAPED.sub(lambda escaped: chr(int(escaped[1], 8)), folder)
                found[int(device.split(":")[1])] = folder, kind
    return found


def _answers(tree: Tree, folder: str) -> bool:
    try:
        commands.run(
            ["stat", "--file-system", tree.inside(folder)], timeout=_ANSWER_SECONDS, check=False
        )
    except commands.CommandFailed as error:
        return not error.timed_out
    return True


def _refuse_sandboxes(tree: Tree, members: list[int]) -> None:
    """Raise KernelNotCheckpointable for a process with a seccomp filter of its own, which CRIU would restore twice."""
    found = [pid for pid in members if seccomp.added(pid, tree.init_pid) > 0]
    _refuse(
        found,
        "A process of the kernel runs in a sandbox of its own (seccomp)",
        "End it (for a browser: close it, or start it with --no-sandbox), then try again.",
    )


def _refuse_servers(members: list[int]) -> None:
    """Raise KernelNotCheckpointable for a server of a file system (FUSE): CRIU would wait for it while it stands still."""
    found = [pid for pid in members if fuse.serves(pid)]
    _refuse(
        found,
        "A process of the kernel serves a file system (FUSE), which CRIU cannot save",
        "Unmount that file system (`fusermount3 -u FOLDER`), or start its server outside of the kernel, then try again.",
    )


def _refuse(found: list[int], what: str, hint: str) -> None:
    """Raise KernelNotCheckpointable if processes were found; the message begins with `what` and names their programs."""
    if found:
        names = sorted({processes.name(pid) or "?" for pid in found})
        raise KernelNotCheckpointable(
            f"{what}: {', '.join(names)}.",
            hint=hint,
            details=", ".join(f"process {pid} ({processes.name(pid)})" for pid in found),
        )


def _refuse_namespaces(tree: Tree, members: list[int]) -> None:
    """Raise KernelNotCheckpointable for a process in other namespaces than the tree's: CRIU saves some of them but restores none."""
    shared = _namespaces(tree.keeper_pid)
    for pid in members:
        others = [kind for kind, name in _namespaces(pid).items() if name != shared.get(kind)]
        if others and processes.state(pid) != "Z":
            raise KernelNotCheckpointable(
                f"A process of the kernel lives in a namespace of its own (a container or a sandbox): {processes.name(pid)}.",
                hint="End it, then try again.",
                details=f"process {pid} ({processes.name(pid)}): {', '.join(others)}",
            )


def _refuse_closed(members: list[int]) -> None:
    """Raise KernelNotCheckpointable for a process whose memory may not be read (man 2 prctl, PR_SET_DUMPABLE)."""
    for pid in members:
        try:
            os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
        except PermissionError as error:
            if processes.state(pid) in ("Z", None):  # nothing is left of its memory
                continue
            raise KernelNotCheckpointable(
                f"A process of the kernel allows only root to read its memory: {processes.name(pid)}.",
                hint="End it (an ssh-agent, for example), or start it outside of the kernel, then try again.",
                details=f"process {pid} ({processes.name(pid)}): {error}",
            ) from error
        except OSError:  # it has ended
            continue


def _refuse_closed_folders(tree: Tree, members: list[int]) -> None:
    """Raise KernelNotCheckpointable for a deleted file with another name in a folder that is closed to us: CRIU would link it there."""
    for pid in members:
        for fd, link in processes.descriptors(pid).items():
            name = link.removesuffix(" (deleted)")
            if (
                link.startswith("/")
                and name != link
                and _is_shut_in(tree, name, f"/proc/{pid}/fd/{fd}")
            ):
                raise KernelNotCheckpointable(
                    f"The kernel has a file open that was deleted or replaced, and its folder is closed: {name}.",
                    hint="Give yourself the right to write into that folder, or close the file, then try again.",
                    details=f"process {pid} ({processes.name(pid)}), descriptor {fd}",
                )


def _is_shut_in(tree: Tree, name: str, file: str) -> bool:
    """Return whether a deleted file still has another name, and its former folder exists but may not be written to."""
    if name == _WITHOUT_FOLDER:
        return False
    folder = tree.inside(name).parent
    try:
        if not os.stat(file).st_nlink or os.access(folder, os.W_OK | os.X_OK):
            return False
        folder.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _refuse_terminals(members: list[int]) -> None:
    """Raise KernelNotCheckpointable for a terminal (pty) that CRIU could not restore: too many smaller numbers are free."""
    numbers = {number for pid in members for number in _terminals(pid)}
    first_free = next(number for number in itertools.count() if number not in numbers)
    if numbers and max(numbers) - first_free >= _PTMX_TRIES:
        raise KernelNotCheckpointable(
            f"The kernel has a terminal (pty) with number {max(numbers)} but none with number {first_free}. CRIU cannot restore terminals"
            f" whose numbers differ by {_PTMX_TRIES} or more from the first free one.",
            hint="Close the terminals that were opened last (of shells, pexpect ...), then try again.",
        )


def _refuse_names(members: list[int]) -> None:
    """Raise FreezeFailed for a descriptor of a mere name (O_PATH) that CRIU saves and cannot restore: it takes it for an open one."""
    for pid in members:
        for fd, link in processes.descriptors(pid).items():
            if not link.startswith(_RESTORED_AS_OPEN):
                continue
            with suppress(OSError), open(f"/proc/{pid}/fdinfo/{fd}") as info:
                if any(int(flags, 8) & os.O_PATH for flags in _FLAGS.findall(info.read())):
                    raise FreezeFailed(
                        "The kernel has a descriptor for the name of a pipe or terminal (O_PATH), which CRIU cannot restore.",
                        hint="Close it and try again; the details name it.",
                        details=f"descriptor {fd} ({link}) of process {pid} ({processes.name(pid)})",
                    )


def _refuse_full_tables(members: list[int]) -> None:
    """Raise FreezeFailed for a process that can open no further files: CRIU's code in it opens some."""
    for pid in members:
        limit, opened = limits.soft_descriptors(pid), len(processes.descriptors(pid))
        if limit is not None and limit - opened < _CRIUS_DESCRIPTORS:
            raise FreezeFailed(
                f"A process of the kernel has reached its limit of open files: {processes.name(pid)} ({opened} of {limit}).",
                hint="Close some of them, or raise the limit (in Python: resource.setrlimit), then try again.",
                details=f"process {pid} ({processes.name(pid)})",
            )


def _terminals(pid: int) -> Iterator[int]:
    """Yield the numbers of the terminals (ptys) that a process has open."""
    for fd, link in processes.descriptors(pid).items():
        folder, _, name = link.rpartition("/")
        if folder == "/dev/pts" and name.isdecimal():
            yield int(name)
        elif name == "ptmx":
            with suppress(OSError), open(f"/proc/{pid}/fdinfo/{fd}") as info:
                yield from map(int, _TTY_INDEX.findall(info.read()))


def _namespaces(pid: int) -> dict[str, str]:
    """Return those namespaces of a process that can be read, by kind."""
    found = {kind: processes.namespace(pid, kind) for kind in _NAMESPACES}
    return {kind: name for kind, name in found.items() if name is not None}


def _ghost_limit(members: list[int]) -> int:
    """Return an upper bound for the size of deleted files that the tree has open or mapped: CRIU puts them into its images."""
    largest = 0
    for pid in members:
        for _, file in processes.deleted_files(pid):
            largest = max(largest, _size(file))
        for area in processes.maps(pid):
            # Without a capability in the initial user namespace the file's size cannot be read.
            if area.path.endswith(" (deleted)"):
                largest = max(largest, area.offset + area.end - area.start)
    return max(_SMALLEST_GHOST_LIMIT, largest + _MB)


def _size(path: str) -> int:
    try:
        status = os.stat(path)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
