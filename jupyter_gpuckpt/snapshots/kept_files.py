"""Files that travel with a snapshot because the user chose them, by the patterns in `LaunchSpec.keep_files`.

A pattern is absolute, begins with `~/`, or is relative to the folder in which the kernel was started; `*` stands for any characters,
including `/`. Of the files that match, those travel that the kernel has open or mapped and only reads: a file that it writes to belongs
to this machine. See also: `engine.kept_files`, for how a kernel gets them.
"""

from __future__ import annotations

import glob
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from ..engine import kept_file_copies
from ..engine.freeze import Frozen
from ..engine.tree.tree import Tree
from ..errors import HostIncompatible
from ..host.file_digests import FileDigests
from ..images.pack import FileSource
from ..wire.file_records import KeptFile
from ..wire.manifest_records import LaunchSpec, Manifest

#: Folders of the system, whose files are each machine's own.
_SYSTEM = ("/proc/", "/sys/", "/dev/")
#: The user-space libraries of the GPU driver, which must match the machine's kernel modules.
_DRIVER = ("libcuda.so*", "libnvidia-*", "libcudadebugger.so*")


def chosen(
    tree: Tree, state: Frozen, spec: LaunchSpec, digests: FileDigests
) -> tuple[list[KeptFile], list[FileSource]]:
    """Return the files of a frozen tree that travel with the snapshot, and the sources of their content.

    A file of which the tree has a copy from an earlier snapshot is always among them, whatever the patterns are now.
    """
    patterns = [_absolute(pattern, spec.cwd) for pattern in spec.keep_files]
    found: list[KeptFile] = []
    sources: list[FileSource] = []
    if not patterns and not state.copies:
        return found, sources
    captured = {record.path for record in state.captured}
    for path in sorted(kept_file_copies.readable(state.images) - captured):
        if path not in state.copies and not _is_chosen(path, patterns):
            continue
        source = state.copies.get(path) or tree.inside(path)
        with suppress(OSError):  # an unreadable file is skipped
            status = source.stat()
            mode = stat.S_IMODE(status.st_mode)
            if stat.S_ISREG(status.st_mode) and not mode & ~0o777:
                file = KeptFile(path, status.st_size, digests.of(source), mode)
                sources.append(FileSource(file.stream, source))
                found.append(file)
    return found, sources


def unchanged(
    files: Sequence[KeptFile], state: Frozen, tree: Tree, digests: FileDigests
) -> tuple[list[KeptFile], list[str]]:
    """Return the files that did not change while they were read, and a warning for each of the others."""
    still, changed = [], []
    for file in files:
        if _is_same(state.copies.get(file.path) or tree.inside(file.path), file, digests):
            still.append(file)
        else:
            changed.append(
                f"The file {file.path} was written while it was read; it does not travel with the snapshot."
            )
    return still, changed


def lacking(
    manifest: Manifest, directory: Path, digests: FileDigests | None = None
) -> list[KeptFile]:
    """Return the files that are missing or differ on this machine, so that a kernel needs copies.

    Copies that were damaged since are removed. Raises HostIncompatible if the disk has no room for the others.
    """
    known = digests or FileDigests()
    found = [file for file in manifest.kept if not _is_same(Path(file.path), file, known)]
    needed = 0
    for file in found:
        copy = kept_file_copies.copy_of(file, directory)
        if not _is_same(copy, file, known):
            copy.unlink(missing_ok=True)
            needed += file.length
    place = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise HostIncompatible(
            "The kernel cannot be resumed here as things are."
            f" {needed >> 20} MB are needed on the disk for files that travel with it, {free >> 20} MB are free in {place}.",
            hint=f"Free space where {place} lies, then try again. The snapshot is untouched.",
        )
    return found


def _is_same(path: Path, file: KeptFile, digests: FileDigests) -> bool:
    try:
        status = path.stat()
        return (
            stat.S_ISREG(status.st_mode)  # reading another might never end
            and (stat.S_IMODE(status.st_mode), status.st_size) == (file.mode, file.length)
            and digests.of(path) == file.digest
        )
    except OSError:
        return False


def _is_chosen(path: str, patterns: Sequence[str]) -> bool:
    return (
        _is_text(path)
        and not path.startswith(_SYSTEM)
        and not any(fnmatchcase(Path(path).name, pattern) for pattern in _DRIVER)
        and any(fnmatchcase(path, pattern) for pattern in patterns)
    )


def _is_text(path: str) -> bool:
    with suppress(UnicodeEncodeError):
        return bool(path.encode())
    return False


def _absolute(pattern: str, cwd: str) -> str:
    """Return the pattern as one of absolute paths. Special characters in the folder's own path are escaped."""
    if pattern.startswith("~/"):
        return f"{glob.escape(str(Path.home()))}/{pattern[2:]}"
    return pattern if pattern.startswith("/") else f"{glob.escape(cwd)}/{pattern}"
