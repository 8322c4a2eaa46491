"""The files that a kernel has open or mapped and that do not travel with its snapshot: recorded at a save, compared before a resume.

A resumed kernel goes on with the file that it finds under the same name. If that is shorter than what the kernel has mapped, an access
ends the kernel (SIGBUS); if it has other content, the kernel computes with that. Grown files, such as logs, are fine. Does not cover:
making missing files anew (`engine.criu.missing_files`), programs and libraries (`snapshots.resume`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from ..engine.criu import images as criu_images
from ..engine.criu import memory_images, sqlite_locks
from ..engine.criu.images import RegularFile
from ..engine.freeze import Frozen
from ..engine.tree.launch import pids
from ..engine.tree.tree import Tree
from ..host import processes
from ..host.file_outlines import WHOLE_BYTES, FileOutlines, Outline, Wanted
from ..store import manifest_checks
from ..wire.file_records import OpenFile
from ..wire.manifest_records import LINK_REMAP, SCRATCH, Host, Manifest

#: Folders whose files are each machine's own, or the kernel's.
_SYSTEM = ("/proc/", "/sys/", "/dev/", f"{SCRATCH}/")
#: IPython's history, which every kernel of a user writes all the time; the agent handles it.
_HISTORY = "history.sqlite"
#: The endings of SQLite's files beside a database, which come, go and shrink with its connections.
_BESIDE_DATABASES = ("-wal", "-shm", "-journal")


class Difference(Enum):
    """How a file differs from what it was at the snapshot."""

    #: A folder, or a file that the kernel only writes.
    GONE = auto()
    #: A data file that is gone and that the kernel reads or has mapped.
    MISSING = auto()
    #: Shorter than what the kernel has mapped or has read.
    TOO_SHORT = auto()
    #: A database that is another one, in the middle of the kernel's transaction.
    IN_TRANSACTION = auto()
    SHORTER = auto()
    OTHER = auto()
    #: Written since, with the same length, beginning and end, if those are known.
    PERHAPS_OTHER = auto()
    #: A folder that is another one.
    REPLACED = auto()
    #: Longer, and the part that was there is the same, as far as it was compared.
    GROWN = auto()
    #: Whether it differs is not known, because its disk does not answer.
    UNKNOWN = auto()


_REFUSED = (Difference.TOO_SHORT, Difference.IN_TRANSACTION, Difference.MISSING)


class Found(NamedTuple):
    """A data file that differs from the snapshot's record of it. `length`, `mtime_ns`: the present ones."""

    file: OpenFile
    difference: Difference
    length: int = 0
    mtime_ns: int = 0

    @property
    def text(self) -> str:
        """The sentence for users; empty if the difference does not concern them."""
        how = "mapped into its memory" if self.file.mapped else "open"
        path, now, then = self.file.path, f"{self.length:,} bytes", f"{self.file.length:,}"
        if self.difference is Difference.TOO_SHORT and self.length < self.file.mapped:
            return (
                f"The file {path} has only {now} now, {then} at the snapshot. The kernel has {self.file.mapped:,} of them mapped into its"
                " memory, and an access to those that are missing would end it (SIGBUS)."
            )
        return {
            Difference.GONE: f"The folder {path}, which the kernel has open, is gone."
            * self.file.is_folder,
            Difference.MISSING: f"The file {path}, which the kernel has {how}, is gone.",
            Difference.TOO_SHORT: f"The file {path} has only {now} now, {then} at the snapshot. The kernel has read up to byte"
            f" {self.file.read:,} of it and would find nothing more.",
            Difference.IN_TRANSACTION: f"The file {path} was changed, and the kernel is in the middle of a transaction with this"
            " database. It may damage the database when it goes on.",
            Difference.SHORTER: f"The file {path}, which the kernel has open, is shorter than at the snapshot: {now} now, {then} then.",
            Difference.OTHER: f"The file {path}, which the kernel has open, has other content than at the snapshot.",
            Difference.PERHAPS_OTHER: f"The file {path}, which the kernel has open, was written since the snapshot. Its length is the"
            " same; its content may be another.",
            Difference.REPLACED: f"The folder {path}, which the kernel has open, was replaced by another one.",
            Difference.UNKNOWN: f"It is not known whether the file {path}, which the kernel has open, has changed: its disk does not"
            " answer.",
        }.get(self.difference, "")


def learn(tree: Tree, outlines: FileOutlines) -> None:
    """Read the files that a running tree has open or mapped, so that their digests are known when it is stopped."""
    paths = set[str]()
    for pid in pids(tree):
        paths.update(processes.descriptors(pid).values())
        paths.update({area.path for area in processes.maps(pid)} - processes.programs(pid))
    outlines.read({path: Wanted(tree.inside(path)) for path in paths if _is_of_users(path)})


def recorded(
    state: Frozen, tree: Tree, elsewhere: Collection[str], outlines: FileOutlines
) -> list[OpenFile]:
    """Return the files of a frozen tree's images, as they are now. `elsewhere`: paths that are recorded elsewhere."""
    remapped = criu_images.remapped(state.images)
    databases = sqlite_locks.in_transaction(state.images)
    ends = memory_images.mapped_ends(state.images)
    files: dict[str, OpenFile] = {}
    for entry in criu_images.regular_files(state.images):
        path = "/" + entry.path.lstrip("/")
        if entry.file_id in remapped or entry.build_id or path in elsewhere:
            continue
        if not _is_readable(entry):
            continue
        if _is_of_users(path) and (path in files or len(files) < manifest_checks.MAX_OPEN_FILES):
            made = _recorded(path, entry, ends.get(entry.file_id, 0), databases)
            files[path] = _joined(files[path], made) if path in files else made
    found = outlines.read(
        {
            path: Wanted(tree.inside(path), file.length or None)
            for path, file in files.items()
            if file.in_transaction or not _is_beside_database(file)
        }
    )
    return [_with_outline(file, found.get(path)) for path, file in sorted(files.items())]


def differences(
    manifest: Manifest,
    this_host: Host,
    outlines: FileOutlines,
    inside: Callable[[str], Path] = Path,
) -> list[Found]:
    """Return the files that differ from what they were at the snapshot. `inside`: as in `missing_files.missing`."""
    here = _is_same_start(manifest, this_host)
    wanted = {
        file.path: Wanted(
            inside(file.path),
            file.length,
            known=(file.device, file.inode, file.length, file.mtime_ns) if here else None,
        )
        for file in manifest.open_files
    }
    found = outlines.read(wanted)
    compared = (_compared(file, found[file.path], here=here) for file in manifest.open_files)
    return [one for one in compared if one is not None]


def missing_folders(found: Iterable[Found]) -> list[str]:
    """Return a sentence for each folder that is missing."""
    return [one.text for one in found if one.difference is Difference.GONE and one.text]


def refusals(found: Iterable[Found]) -> list[str]:
    """Return a sentence for each file with which the kernel would end, or do harm, so that only a user can want it."""
    return [one.text for one in found if one.difference in _REFUSED]


def former_names(found: Iterable[Found], manifest: Manifest, this_host: Host) -> list[str]:
    """Return a sentence for each file that is too short because another took its name, if it has a new one in the same folder."""
    told = []
    for one in found:
        short = one.difference is Difference.TOO_SHORT and _is_same_start(manifest, this_host)
        if short and (name := _named(one.file)):
            told.append(f"The former {one.file.path} is called {name} now.")
    return told


def suspicious(found: Iterable[Found]) -> list[str]:
    """Return a sentence for each other difference that falsifies what the kernel computes."""
    others = {*_REFUSED, Difference.GONE}
    return [one.text for one in found if one.difference not in others and one.text]


def _is_same_start(manifest: Manifest, this_host: Host) -> bool:
    """Return whether the machine is that of the snapshot and was not started anew, so that device and inode numbers are comparable."""
    return bool(this_host.boot_id) and this_host.boot_id == manifest.host.boot_id


def _named(file: OpenFile) -> str:
    """Return the new name of a recorded file in its folder, whose disk has just answered; empty if it is not found."""
    path = Path(file.path)
    with suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            is_it = entry.inode() == file.inode and entry.stat().st_dev == file.device
            if is_it and entry.name != path.name:
                return entry.name
    return ""


def _recorded(path: str, entry: RegularFile, end: int, databases: set[str]) -> OpenFile:
    reads_only = entry.flags & os.O_ACCMODE == os.O_RDONLY
    if stat.S_ISDIR(entry.mode):
        return OpenFile(path, is_folder=True)
    length = entry.length or 0
    # A mapping may end, and an offset may lie, beyond the end of any file.
    read = entry.position if reads_only and entry.position <= length else 0
    is_index = path.endswith(sqlite_locks.INDEX)
    database = path.removesuffix("-wal").removesuffix("-journal")
    return OpenFile(
        path,
        length,
        min(end, length),
        read,
        is_written=not reads_only,
        in_transaction=database in databases and not is_index,
    )


def _joined(one: OpenFile, other: OpenFile) -> OpenFile:
    return OpenFile(
        one.path,
        max(one.length, other.length),
        max(one.mapped, other.mapped),
        max(one.read, other.read),
        is_written=one.is_written or other.is_written,
        is_folder=one.is_folder,
        in_transaction=one.in_transaction,
    )


def _with_outline(file: OpenFile, now: Outline | OSError | None) -> OpenFile:
    if not isinstance(now, Outline):
        return file
    add = partial(replace, file, device=now.version[0], inode=now.version[1])
    if file.is_folder:
        return add()
    # A file that is only appended to has no length in the images.
    return add(length=file.length or now.length, mtime_ns=now.mtime_ns, digest=now.digest)


def _compared(file: OpenFile, now: Outline | OSError, *, here: bool) -> Found | None:
    if isinstance(now, FileNotFoundError | NotADirectoryError):
        gone = _absence(file)
        return Found(file, gone) if gone else None
    if isinstance(now, TimeoutError):
        return Found(file, Difference.UNKNOWN)
    if isinstance(now, OSError):
        return None  # it could not be examined at the snapshot either
    if file.is_folder:
        moved = here and file.inode and now.version[:2] != (file.device, file.inode)
        return Found(file, Difference.REPLACED) if moved else None
    difference = _difference(file, now)
    return Found(file, difference, now.length, now.mtime_ns) if difference else None


def _absence(file: OpenFile) -> Difference | None:
    if file.in_transaction:
        return Difference.IN_TRANSACTION
    if _is_beside_database(file):
        return None
    is_needed = not file.is_folder and (file.mapped or not file.is_written)
    return Difference.MISSING if is_needed else Difference.GONE


def _difference(file: OpenFile, now: Outline) -> Difference | None:
    are_known = bool(file.digest and now.digest)
    is_same = are_known and file.digest == now.digest and file.length <= WHOLE_BYTES
    was_written = bool(file.mtime_ns) and now.mtime_ns != file.mtime_ns
    differs = {
        Difference.TOO_SHORT: now.length < max(file.mapped, file.read),
        Difference.SHORTER: now.length < file.length,
        Difference.OTHER: not stat.S_ISREG(now.mode) or (are_known and now.digest != file.digest),
        Difference.GROWN: now.length > file.length,
        Difference.PERHAPS_OTHER: was_written and not is_same,
    }
    found = next((difference for difference, holds in differs.items() if holds), None)
    if found and file.in_transaction:
        return Difference.IN_TRANSACTION
    return None if _is_beside_database(file) and found is not Difference.TOO_SHORT else found


def _is_of_users(path: str) -> bool:
    name = path.rpartition("/")[2]
    return (
        manifest_checks.is_plain(path)
        and not path.startswith(_SYSTEM)
        and not is_history(path)
        and not name.startswith(LINK_REMAP)
        and not any("\ud800" <= letter <= "\udfff" for letter in path)
    )


def is_history(path: str) -> bool:
    """Return whether a path is that of IPython's history, or of a file beside it."""
    return path.rpartition("/")[2].startswith(_HISTORY)


def _is_readable(entry: RegularFile) -> bool:
    """Return whether it is a folder or has content. CRIU also lists named pipes and devices, and what is open by name only."""
    if stat.S_ISDIR(entry.mode):
        return True
    return stat.S_ISREG(entry.mode) and not entry.flags & os.O_PATH


def _is_beside_database(file: OpenFile) -> bool:
    return file.is_written and file.path.endswith(_BESIDE_DATABASES)
