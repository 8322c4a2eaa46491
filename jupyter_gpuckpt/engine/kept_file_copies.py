"""Copies of the files that travel with a snapshot, for kernels on machines where such a file is missing or differs.

CRIU opens files by their paths. Before a restore its images are edited to name the copy; after the next dump they are edited to name
the file again. A copy lies in a folder of ours, below which it has the file's path. Copies are not mounted over the files: such a mount
disappears when a user replaces the file, and then the kernel cannot be saved any more; and a missing file would need a mount point.

Does not cover: which files travel and which of them differ here (`snapshots.kept_files`).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from blake3 import blake3

from ..host import processes
from ..wire.file_records import KeptFile
from ..wire.manifest_records import LINK_REMAP
from .criu import file_images
from .criu import images as criu_images
from .criu.images import RegularFile

#: The prefix of folders with copies that are being written.
_UNFINISHED = "unfinished-"


def copy_of(file: KeptFile, directory: Path) -> Path:
    """Return the path of a file's copy; files with the same path, content and mode share one."""
    key = blake3(f"{file.digest} {file.mode:o} {file.path}".encode()).hexdigest()
    return directory / key / file.path.lstrip("/")


def give_own_names(images: Path, directory: Path) -> dict[str, Path]:
    """Rename copies below `directory` in the images of a dump to the files' own paths; return all copies by their new names.

    A copy keeps its name if the kernel also has this machine's file of that path open.
    """
    copies: dict[str, Path] = {}
    if not directory.is_dir():
        return copies
    taken = {_path(file) for file in criu_images.regular_files(images)}
    for name in sorted(readable(images)):
        path = _own_path(name, directory)
        if path:
            copies[name if path in taken or path in copies else path] = Path(name)
    file_images.rename(images / "files.img", {str(copy): path for path, copy in copies.items()})
    return copies


def stand_in(
    images: Path,
    files: Sequence[KeptFile],
    directory: Path,
    to_file: Callable[[Sequence[tuple[str, Path]]], None],
) -> None:
    """Rename these files in the images to their copies, and write missing copies."""
    listed = readable(images) if files else set()
    copies = {file: copy_of(file, directory) for file in files if file.path in listed}
    file_images.rename(
        images / "files.img", {file.path: str(copy) for file, copy in copies.items()}
    )
    _write([file for file, copy in copies.items() if not copy.exists()], directory, to_file)


def _write(
    files: Sequence[KeptFile],
    directory: Path,
    to_file: Callable[[Sequence[tuple[str, Path]]], None],
) -> None:
    """Write copies. Each gets its name when it is complete, because another resume may write the same one."""
    if not files:
        return
    with TemporaryDirectory(prefix=_UNFINISHED, dir=directory) as unfinished:
        paths = [Path(unfinished, str(number)) for number in range(len(files))]
        to_file([(file.stream, path) for file, path in zip(files, paths, strict=True)])
        for file, path in zip(files, paths, strict=True):
            path.chmod(file.mode)
            copy = copy_of(file, directory)
            copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                copy.hardlink_to(path)


def readable(images: Path) -> set[str]:
    """Return the paths of the regular files that a tree only reads and that CRIU restores by these paths."""
    elsewhere, found, written = criu_images.remapped(images), set[str](), set[str]()
    for file in criu_images.regular_files(images):
        path = _path(file)
        if file.flags & os.O_ACCMODE != os.O_RDONLY or file.file_id in elsewhere:
            written.add(path)
        elif stat.S_ISREG(file.mode) and not Path(path).name.startswith(LINK_REMAP):
            found.add(path)
    return found - written


@contextmanager
def in_use(directory: Path, files: Sequence[KeptFile]) -> Iterator[None]:
    """Protect copies of these files from collection inside the block; collect the others, and after a failure these as well."""
    if not files:
        yield
        return
    collect(directory, files)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with _opened(directory) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield
    except BaseException:
        collect(directory)
        raise


def collect(directory: Path, wanted: Sequence[KeptFile] = ()) -> None:
    """Remove unwanted copies that no process has open or mapped, unless a resume is under way; never raises."""
    keys = {_key(str(copy_of(file, directory)), directory) for file in wanted}
    with suppress(OSError), _opened(directory) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = {entry.name for entry in os.scandir(directory)} - keys
        for key in found - _used(directory) if found else ():
            shutil.rmtree(directory / key, ignore_errors=True)


def _path(file: RegularFile) -> str:
    return "/" + file.path.lstrip("/")


def _used(directory: Path) -> set[str]:
    found = set[str]()
    for pid in processes.every():
        names = [*processes.descriptors(pid).values(), *(area.path for area in processes.maps(pid))]
        found |= {_key(name, directory) for name in names}
    return found


def _key(name: str, directory: Path) -> str:
    """Return the name of the folder below `directory` in which this file lies; an empty string if it lies elsewhere."""
    prefix = f"{directory}/"
    return name[len(prefix) :].split("/", 1)[0] if name.startswith(prefix) else ""


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _own_path(name: str, directory: Path) -> str:
    """Return the path of the file of which this is a copy; an empty string if it is not a copy."""
    key = _key(name, directory)
    return name.removeprefix(f"{directory}/{key}") if key else ""
