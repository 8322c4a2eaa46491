"""A search for the files and folders that a tree watches by inotify, for an unprivileged CRIU.

Linux reports a watched file by its inode number, by which only a capability in the initial user namespace allows to open it. CRIU
also accepts paths to try (`--irmap-scan-path`). The search looks where programs watch files: in working directories, open folders,
the user's home and folders for temporary files, nearest first.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from ...host import processes
from ..tree.launch import pids
from ..tree.tree import Tree

_INOTIFY = "anon_inode:inotify"
#: A watch in man proc_pid_fdinfo: both numbers are hexadecimal, the device in Linux's internal form.
_WATCH = re.compile(r"^inotify wd:\S+ ino:([0-9a-f]+) sdev:([0-9a-f]+) ", re.MULTILINE)
_MINOR_BITS = 20
#: Limits of the search, because a home may have millions of files or lie on a slow disk: seconds of CPU time, which leaves out the
#: waiting on a busy machine, seconds of time, and files.
_MAX_PROCESSOR_SECONDS, _MAX_SECONDS, _MAX_FILES = 1.0, 5.0, 100_000

_File = tuple[int, int]


def paths(tree: Tree) -> list[str]:
    """Return a path of every watched file that is found; CRIU names the others in its error."""
    members = pids(tree)
    wanted = {file for pid in members for file in _watched(pid)}
    found: dict[_File, str] = {}
    if wanted:
        processor_deadline = time.thread_time() + _MAX_PROCESSOR_SECONDS
        deadline = time.monotonic() + _MAX_SECONDS
        for count, (path, file) in enumerate(_near(tree, members, {ino for _, ino in wanted})):
            if file in wanted:
                found.setdefault(file, path)
            is_over = time.thread_time() > processor_deadline or time.monotonic() > deadline
            if len(found) == len(wanted) or count > _MAX_FILES or is_over:
                break
    return sorted(found.values())


def _watched(pid: int) -> Iterator[_File]:
    for number, link in processes.descriptors(pid).items():
        if link == _INOTIFY:
            with suppress(OSError), open(f"/proc/{pid}/fdinfo/{number}") as info:
                for inode, device in _WATCH.findall(info.read()):
                    kept = int(device, 16)
                    minor = kept & ((1 << _MINOR_BITS) - 1)
                    yield os.makedev(kept >> _MINOR_BITS, minor), int(inode, 16)


def _near(tree: Tree, members: list[int], inodes: set[int]) -> Iterator[tuple[str, _File]]:
    """Yield every file that may have one of these inodes, breadth first. Paths are those of the kernel's mount namespace."""
    folders = deque(_begin(members))
    seen: set[_File] = set()
    while folders:
        folder = folders.popleft()
        with suppress(OSError):
            status = os.stat(tree.inside(folder))
            file = status.st_dev, status.st_ino
            if file in seen:
                continue
            seen.add(file)
            yield folder, file
            with os.scandir(tree.inside(folder)) as entries:
                for entry in entries:
                    path = os.path.join(folder, entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(path)
                    elif entry.inode() in inodes:
                        yield path, (status.st_dev, entry.inode())


def _begin(members: list[int]) -> list[str]:
    """Return the folders where the search begins, nearest first, and last the parents of working directories."""
    working = []
    for pid in members:
        with suppress(OSError):
            working.append(os.readlink(f"/proc/{pid}/cwd"))
    opened = [
        link
        for pid in members
        for link in processes.descriptors(pid).values()
        if link.startswith("/")
    ]
    files = [os.path.dirname(link) for link in opened]
    others = [tempfile.gettempdir(), "/dev/shm", os.path.expanduser("~")]  # noqa: S108 - only searched
    return list(dict.fromkeys([*working, *opened, *files, *map(os.path.dirname, working), *others]))
