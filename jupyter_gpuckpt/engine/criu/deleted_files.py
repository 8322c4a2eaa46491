"""Deleted files that a tree has mapped, made accessible to an unprivileged CRIU: semaphores, replaced libraries, memfds.

Opening /proc/PID/map_files needs a capability in the initial user namespace; without it CRIU opens a mapped file by its name. If the
name is gone, the preloaded library (preload.c) gives CRIU another path. That is a descriptor of the same file in a process of the
tree, another name of the file, or else a substitute on scratch with the bytes that the processes have mapped. CRIU takes descriptors
and substitutes for deleted files, so it saves their content; after a restore all processes that had the file mapped share it again.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress

from ...host import processes
from ...host.processes import Mapping
from ...linux.pwrite import pwrite_all
from ...wire.manifest_records import SCRATCH
from ..tree.tree import Tree

logger = logging.getLogger(__name__)

#: The file that lists the paths for CRIU, in the kernel's mount namespace, and the variable with its name.
LIST = f"{SCRATCH}/gone"
VARIABLE = "GPUCKPT_GONE"

#: A record of the list, as in preload.c: pid, start, end and a path.
_MAX_PATH_BYTES = 232
_RECORD = struct.Struct(f"<3Q{_MAX_PATH_BYTES}s")
_MAX_RECORDS = 4096
_DELETED = " (deleted)"
#: Names that CRIU recognizes without opening a file.
_KNOWN = ("/dev/zero", "/SYSV", "/anon_hugepage", "/[aio]")
_PREFIX = f"{SCRATCH}/gone-"
_PAGE, _PIECE = 4096, 1 << 20
#: How many characters of a file's name its substitute keeps.
_SHOWN = 60
#: A flag in a record's pid for shared anonymous memory, of which CRIU only reads the content. Read through the process's own mapping,
#: the memory would have no holes, and all of it would be in the images.
_CONTENT = 1 << 63
_SHARED_MEMORY = f"/dev/zero{_DELETED}"

_File = tuple[str, int]
_Areas = list[tuple[int, Mapping]]


class DeletedFiles:
    """The list of paths of deleted files that a tree has mapped. Its tasks must be stopped."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        #: The former names of files, by the paths of their substitutes.
        self.names: dict[str, str] = {}

    def find(self, pids: Iterable[int]) -> None:
        """Find all deleted files, fill the substitutes and write the list for CRIU. Raises OSError."""
        members = list(pids)
        files, shared = _mapped(members)
        other = self._named(files) | _held(members, files) if files else {}
        records = []
        for file, areas in files.items():
            way = other.get(file) or self._substitute(areas)
            if len(os.fsencode(way)) >= _MAX_PATH_BYTES:
                way = self._substitute(areas)
            records += [
                (processes.nspid(pid) or 0, area.start, area.end, os.fsencode(way))
                for pid, area in areas
            ]
        for areas in shared.values():
            way = self._substitute(areas)
            records += [
                ((processes.nspid(pid) or 0) | _CONTENT, area.start, area.end, os.fsencode(way))
                for pid, area in areas
            ]
        listed = self._tree.inside(LIST)
        listed.write_bytes(
            b"".join(_RECORD.pack(*record) for record in sorted(records)[:_MAX_RECORDS])
        )

    def remove(self) -> None:
        """Remove the list, and substitutes that CRIU has not removed."""
        remove(self._tree)

    def _named(self, files: dict[_File, _Areas]) -> dict[_File, str]:
        """Return other names of these files: sem_open creates a file under a temporary name."""
        inodes = {file[1]: file for file in files}
        found: dict[_File, str] = {}
        for folder in {os.path.dirname(areas[0][1].path) for areas in files.values()}:
            with suppress(OSError), os.scandir(self._tree.inside(folder)) as entries:
                for entry in entries:
                    file = inodes.get(entry.inode())
                    if (
                        file
                        and entry.is_file(follow_symlinks=False)
                        and _device(entry.stat().st_dev) == file[0]
                    ):
                        found[file] = f"{folder}/{entry.name}"
        return found

    def _substitute(self, areas: _Areas) -> str:
        original = areas[0][1].path.removesuffix(_DELETED)
        name = os.path.basename(original)
        if original.startswith(_PREFIX):  # the substitute of an earlier snapshot
            original = name = name.removeprefix(os.path.basename(_PREFIX)).partition("-")[2]
        path = f"{_PREFIX}{len(self.names)}-{name[:_SHOWN]}"
        descriptor = os.open(
            self._tree.inside(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        try:
            read = set()
            # Areas without private changes come last and overwrite the others, because they have the file's own bytes.
            for pid, area in sorted(
                areas, key=lambda one: not (one[1].private and "w" in one[1].perms)
            ):
                place = area.offset, area.end - area.start
                if area.private or place not in read:
                    _copy(pid, area, descriptor)
                if not area.private:
                    read.add(place)
        finally:
            os.close(descriptor)
        self.names[path] = original
        return path


def remove(tree: Tree) -> None:
    """Remove the list and the substitutes that an earlier dump left on scratch."""
    scratch = tree.scratch
    for path in scratch.glob("gone*"):
        with suppress(OSError):
            path.unlink()


def shared_bytes(pids: Iterable[int]) -> int:
    """Return the size in bytes of the shared anonymous memory of these processes; reading it allocates all of its pages."""
    _, shared = _mapped(list(pids))
    return sum(
        max(area.offset + area.end - area.start for _, area in areas) for areas in shared.values()
    )


def _mapped(pids: list[int]) -> tuple[dict[_File, _Areas], dict[_File, _Areas]]:
    """Return the areas of every deleted file, by its device and inode, and those of shared anonymous memory."""
    files: dict[_File, _Areas] = {}
    shared: dict[_File, _Areas] = {}
    for pid in pids:
        for area in processes.maps(pid):
            if not area.inode or not area.path.endswith(_DELETED):
                continue
            file = area.dev, area.inode
            if not area.path.startswith(_KNOWN):
                files.setdefault(file, []).append((pid, area))
            elif area.path == _SHARED_MEMORY and not area.private:
                shared.setdefault(file, []).append((pid, area))
    return files, shared


def _held(pids: list[int], files: dict[_File, _Areas]) -> dict[_File, str]:
    """Return paths of descriptors of these files, as CRIU sees them."""
    inodes = {file[1]: file for file in files}
    found: dict[_File, str] = {}
    for pid in pids:
        for number, link in processes.descriptors(pid).items():
            if not link.endswith(_DELETED):
                continue
            with suppress(OSError):
                status = os.stat(f"/proc/{pid}/fd/{number}")
                file = inodes.get(status.st_ino)
                # Some file systems report another device here than in /proc/PID/maps.
                if file and (_device(status.st_dev) == file[0] or link == files[file][0][1].path):
                    found.setdefault(file, f"/proc/{processes.nspid(pid)}/fd/{number}")
    return found


def _device(number: int) -> str:
    return f"{os.major(number):02x}:{os.minor(number):02x}"


def _copy(pid: int, area: Mapping, descriptor: int) -> None:
    """Copy the bytes of an area into its file's substitute, up to the end of the file."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for at, data in _pieces(memory.fileno(), area):
            place = area.offset + at - area.start
            os.ftruncate(descriptor, max(os.fstat(descriptor).st_size, place + len(data)))
            if data.count(0) != len(data):
                pwrite_all(descriptor, data, place)


def _pieces(memory: int, area: Mapping) -> Iterator[tuple[int, bytes]]:
    at = area.start
    while at < area.end:
        data = b""
        for size in (_PIECE, _PAGE):  # page by page near the end of the file
            with suppress(OSError):
                data = os.pread(memory, min(size, area.end - at), at)
            if data:
                break
        if not data:
            return
        yield at, data
        at += len(data)
