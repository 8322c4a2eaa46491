"""Files that CRIU does not save: the private /dev/shm, the keeper's program and the secrets on scratch, and CRIU's `link_remap` links.

CRIU expects to find these files by name at a restore. So the snapshot contains them, and `placing.py` creates them before a restore.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from ..host import processes
from ..wire.manifest_records import LINK_REMAP, SCRATCH, CapturedFile
from .tree import ferry_library, fresh_randomness, kept_secrets, outside_signals
from .tree.launch import pids
from .tree.tree import Tree

KEEPER = f"{SCRATCH}/keeper"
_COPIES = f"{SCRATCH}/copies"
_REMOVING_THREADS = 8
#: The kinds of files that are captured. CRIU's images hold the bytes in a FIFO, but not the FIFO itself.
_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
}


class Capture(msgspec.Struct):
    """The captured files: their records, and for every stream the path where its bytes can be read."""

    files: list[CapturedFile] = []
    sources: dict[str, Path] = {}


def capture(
    tree: Tree, *, private_shm: bool, link_remaps: list[str], copy: bool, held: ExitStack
) -> Capture:
    """List the files while every task is stopped. Paths are those of the kernel's mount namespace.

    With `copy` their bytes are copied first, because the tasks are about to go on. Otherwise the files themselves are read
    later. CRIU's links are then read through descriptors, which `held` closes, so they may be unlinked at once. Hard links stay
    hard links.
    """
    found, first_of = Capture(), dict[tuple[int, int], str]()
    for path in _paths(tree, private_shm=private_shm, link_remaps=link_remaps):
        outside = tree.inside(path)
        try:
            status = outside.lstat()
        except FileNotFoundError:
            continue
        inode = (status.st_dev, status.st_ino)
        record = CapturedFile(
            path=path,
            kind=_kind(status.st_mode),
            mode=_harmless(status.st_mode),
            uid=status.st_uid,
            gid=status.st_gid,
            mtime_ns=status.st_mtime_ns,
            target=os.readlink(outside) if stat.S_ISLNK(status.st_mode) else "",
            stream=f"file{path}" if stat.S_ISREG(status.st_mode) else "",
        )
        if record.stream and inode in first_of:
            record = CapturedFile(path=path, kind="hardlink", target=first_of[inode])
        elif record.stream:
            first_of[inode] = path
            if copy:
                outside = _aside(tree, outside, len(first_of))
            elif path in link_remaps:
                outside = _opened(outside, held)
            found.sources[record.stream] = outside
        if record.kind:
            found.files.append(record)
    return found


def _paths(tree: Tree, *, private_shm: bool, link_remaps: list[str]) -> Iterator[str]:
    yield KEEPER
    yield outside_signals.INSIDE
    yield fresh_randomness.INSIDE
    yield ferry_library.INSIDE
    yield kept_secrets.INSIDE
    if private_shm:
        top = tree.inside("/dev/shm")  # noqa: S108 - the kernel's own, private one
        for directory, names, files in os.walk(top):
            if directory == str(top):
                names[:] = (name for name in names if name != Path(SCRATCH).name)
            for name in sorted(names) + sorted(files):
                path = "/dev/shm/" + str((Path(directory) / name).relative_to(top))  # noqa: S108
                if path not in link_remaps:
                    yield path
    # These come last: their inode usually has a name in /dev/shm as well; then they are recorded as hard links of that file.
    yield from link_remaps


def _harmless(mode: int) -> int:
    """Return the permissions without setuid and, for files, setgid: these bits have no effect on the kernel's nosuid mounts."""
    dropped = stat.S_ISUID if stat.S_ISDIR(mode) else stat.S_ISUID | stat.S_ISGID
    return stat.S_IMODE(mode) & ~dropped


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "")  # sockets with a name are in CRIU's images


def _aside(tree: Tree, source: Path, number: int) -> Path:
    folder = tree.inside(_COPIES)
    folder.mkdir(exist_ok=True)
    target = folder / str(number)
    shutil.copyfile(source, target)
    return target


def _opened(path: Path, held: ExitStack) -> Path:
    """Return a path of the same file that stays valid until `held` is closed, even if the name is removed (man proc, /proc/PID/fd)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    held.callback(os.close, descriptor)
    return Path(f"/proc/self/fd/{descriptor}")


def unlink_strays(tree: Tree) -> None:
    """Remove all of CRIU's links, even those that no image names: a CRIU that was killed may have left some.

    They are hard links to deleted files that the tree has open or mapped, and lie beside the former names of those files.
    """
    for pid in pids(tree):
        for name, file in processes.deleted_files(pid):
            if name.startswith("/"):
                _unlink_stray(tree, name, file)


def _unlink_stray(tree: Tree, name: str, file: str) -> None:
    with suppress(OSError):
        status = os.stat(file)
        if not stat.S_ISREG(status.st_mode) or not status.st_nlink:
            return
        for path in tree.inside(name).parent.glob(f"{LINK_REMAP}*"):
            if os.path.samestat(path.lstat(), status):
                path.unlink(missing_ok=True)


def clear(directory: Path) -> None:
    """Remove the files in a directory; files that cannot be removed stay. Never raises."""

    def remove(path: Path) -> None:
        with suppress(OSError):
            path.unlink()

    found: list[Path] = []
    with suppress(OSError):
        found += directory.glob("*")
    # On a tmpfs Linux frees the pages of a file in the call: 24 GB take 0.07 s in one thread.
    with ThreadPoolExecutor(_REMOVING_THREADS, "clear") as pool:
        try:
            list(pool.map(remove, found))
        except RuntimeError:  # no thread can be started
            list(map(remove, found))


def empty(directory: Path) -> None:
    """Remove the files and folders in a directory, if there is one."""
    with suppress(FileNotFoundError):
        for entry in os.scandir(directory):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                Path(entry.path).unlink(missing_ok=True)


def drop_copies(tree: Tree) -> None:
    """Remove the copies that `capture` made."""
    shutil.rmtree(tree.inside(_COPIES), ignore_errors=True)
