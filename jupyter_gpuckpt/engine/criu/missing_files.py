"""Files that a kernel had open and that are missing when it is resumed.

CRIU opens every file by its path and gives up when one is missing. A file that the kernel was writing (a log, a database such as
IPython's history) is created empty: its content is lost anyway, and the kernel's memory is worth more. A file that it was
reading or had mapped is named in the error, so that the user can put it back: an access to a mapping of an empty file ends a process.
Only if the user says so it is created empty, too. A path at which something of another kind is now is named as well: CRIU would say
that the file is gone, or would wait for ever for the other end of a named pipe.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...errors import FilesChanged, HostIncompatible
from ...host import commands
from ..settings import INIT
from ..tree.tree import Tree
from . import images as criu_images
from . import memory_images
from .sqlite_locks import INDEX

_SHOWN = 5
_TEST_SECONDS = 10.0
#: Folders whose files are made with the namespaces, or cannot be made here.
_OTHERS = ("/proc/", "/sys/", "/dev/")
#: The most bytes of SQLite's index of a log. The last connection removes it with the log; SQLite fills it anew if it finds zeros.
_MAX_INDEX_BYTES = 1 << 30
_LEADS_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Missing(NamedTuple):
    """The files that are missing or of another kind.

    Mode and length of each that can be created, by path, and a sentence about each of the others. `needed`: the sentences, by path, about
    those that can be created, but whose content the kernel needs.
    """

    can_be_made: dict[str, tuple[int, int]]
    needed: dict[str, str]
    lost: list[str]


def missing(
    images: Path,
    inside: Callable[[str], Path],
    traveling: Collection[str] = (),
    *,
    is_reached: Callable[[str], bool] = lambda path: True,
) -> Missing:
    """Find files of files.img that are missing and are not `traveling` with the snapshot.

    `inside` translates a path of the kernel's mount namespace. `is_reached`: whether CRIU, which may have rights that this process lacks,
    finds a file that is hidden from this process; it is assumed to.
    """
    renamed, mapped = criu_images.remapped(images), memory_images.mapped_ends(images)
    can_be_made: dict[str, tuple[int, int]] = {}
    needed: dict[str, str] = {}
    lost: dict[str, str] = {}
    for file in criu_images.regular_files(images):
        path = "/" + file.path.lstrip("/")
        is_of_others = path.startswith(_OTHERS) or path in traveling
        if file.file_id in renamed or file.build_id or is_of_others:
            continue
        try:
            if problem := _problem(path, inside(path), file.mode, is_reached):
                lost[path] = problem
            continue
        except FileNotFoundError:
            pass
        end = mapped.get(file.file_id, 0)
        is_index = path.endswith(INDEX)
        if stat.S_ISDIR(file.mode):
            lost[path] = f"The working directory {path} of the kernel is gone."
        elif file.mode & (stat.S_ISUID | stat.S_ISGID):
            lost[path] = f"The program {path}, which runs with another's rights, is gone."
        elif not stat.S_ISREG(file.mode):
            lost[path] = f"The file {path}, which the kernel has open, is gone."
        else:
            length = min(end, _MAX_INDEX_BYTES) if is_index else 0
            can_be_made[path] = (
                stat.S_IMODE(file.mode),
                max(length, can_be_made.get(path, (0, 0))[1]),
            )
            if end and not is_index:
                needed[path] = (
                    f"The file {path}, which the kernel has mapped into its memory, is gone."
                )
            elif not end and _is_read_only(file):
                needed.setdefault(path, f"The file {path}, which the kernel has open, is gone.")
    return Missing(can_be_made, needed, [lost[path] for path in sorted(lost)])


def _problem(path: str, found: Path, mode: int, is_reached: Callable[[str], bool]) -> str:
    """Return why what is `found` at a path cannot be the kernel's file; empty if it can. Raises FileNotFoundError."""
    try:
        other = _other_kind(found, mode)
    except FileNotFoundError:
        raise
    except NotADirectoryError:
        return f"In the place of a folder of {path}, which the kernel has open, is a file now."
    except OSError as error:
        if isinstance(error, PermissionError) and is_reached(path):
            return ""
        return f"The file {path}, which the kernel has open, cannot be reached: {error.strerror}."
    return f"In the place of {path}, which the kernel has open, is {other} now." if other else ""


def _other_kind(path: Path, mode: int) -> str:
    """Return the name of what is at a path if that is of another kind than `mode` says; empty if it is not. Raises OSError."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode) and not stat.S_ISLNK(mode):
        try:
            status = path.stat()
        except OSError as error:
            if error.errno in _LEADS_NOWHERE:
                return "a link that leads nowhere"
            raise
    kind = stat.S_IFMT(status.st_mode)
    return "" if kind == stat.S_IFMT(mode) else _KINDS.get(kind, "a file of another kind")


def _is_read_only(file: criu_images.RegularFile) -> bool:
    """Return whether a descriptor only reads. The entries of mappings all say so."""
    return file.flags & os.O_ACCMODE == os.O_RDONLY


def is_reached(tree: Tree, path: str) -> bool:
    """Return whether a program finds a file that has CRIU's rights in the namespaces of a tree."""
    argv: list[str | Path] = [INIT, "enter", str(tree.init_pid), "test", "-e", path]
    try:
        return commands.run(argv, timeout=_TEST_SECONDS, check=False).returncode == 0
    except commands.CommandFailed:
        return False


def put_in_place(
    images: Path,
    traveling: Collection[str],
    make_folders: Callable[[Path], None],
    *,
    force: bool,
) -> list[str]:
    """Create missing files that were open for writing, and with `force` those that were only read or were mapped; return their paths.

    Raises HostIncompatible, which names missing files that cannot be created, and FilesChanged for those that would be with `force`;
    nothing is created then.
    """
    found, needed, lost = missing(images, Path, traveling)
    named = [*lost, *needed.values()]
    if lost or (needed and not force):
        or_force = "" if lost else ", or resume it all the same with empty ones"
        raise (HostIncompatible if lost else FilesChanged)(
            " ".join(named[:_SHOWN]),
            hint=f"Put the missing files back, then try again{or_force}. The snapshot is untouched.",
            details="\n".join(named),
            command=""
            if lost
            else "`jupyter gpuckpt resume KERNEL --force` resumes it all the same.",
        )
    made = []
    try:
        for path, (mode, length) in found.items():
            target = Path(path)
            make_folders(target.parent)
            target.touch(mode=0o600, exist_ok=False)
            made.append(path)
            os.truncate(target, length)
            target.chmod(mode)
            owner = target.parent.stat()
            with suppress(PermissionError):  # in another user's folder the file stays this user's
                os.chown(target, owner.st_uid, owner.st_gid)
    except OSError:
        remove(made)
        raise
    return made


def remove(made: list[str]) -> None:
    """Undo `put_in_place`: remove those files to which nothing was written."""
    for path in made:
        with suppress(OSError):
            status = Path(path).lstat()
            if not status.st_size or (path.endswith(INDEX) and not status.st_blocks):
                Path(path).unlink()
