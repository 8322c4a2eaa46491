"""Private directories for the unix sockets of a branch whose original still listens: each kernel sees its own at the same path.

multiprocessing, and with it PyTorch's DataLoader, listens on a socket in a temporary directory. Processes of the branch find each
other by the path that they remember, so the path must stay, but the directory must not be the original's. So a directory on
the kernel's scratch is mounted over it, in the kernel's own mount namespace, and disappears with that.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import ThawFailed
from ...host.commands import CommandFailed
from ...wire.manifest_records import SCRATCH
from ...wire.own_sockets import OwnSockets
from . import mounts

_COPIES = f"{SCRATCH}/socket-directories"
_HINT = (
    "Suspend or shut down the kernel that this one was branched from, then try again."
    " The snapshot is untouched."
)
#: The most entries and bytes of a directory that counts as one made for sockets.
_MAX_DIRECTORY_ENTRIES, _MAX_DIRECTORY_BYTES = 100, 16 << 20


def separate(init_pid: int, paths: Iterable[str], inside: Callable[[str], Path]) -> None:
    """Mount private directories over those of these sockets in the kernel below this init, with copies of their other files.

    `inside` translates a path of the kernel's. Raises ThawFailed for a socket outside of temporary directories: mounting over a
    home directory would hide it.
    """
    for number, directory in enumerate(sorted({str(Path(path).parent) for path in paths})):
        original = Path(directory)
        if not _is_temporary(original):
            raise ThawFailed(
                f"The kernel listens on a socket in {directory}, on which another program listens now.",
                hint=_HINT,
                details=f"{directory} is not a small directory for temporary files",
            )
        with _failures(directory):
            _mount_over(init_pid, original, number, inside)


def replace(init_pid: int, own_sockets: OwnSockets) -> None:
    """Mount the folder in which clients look for the kernel's own sockets over the one in which it sees them. Raises ThawFailed."""
    with _failures(own_sockets.place):
        mounts.bind(init_pid, own_sockets.folder, own_sockets.place)


@contextmanager
def _failures(directory: str) -> Iterator[None]:
    try:
        yield
    except (OSError, CommandFailed) as error:
        raise ThawFailed(
            f"The kernel could not be given a directory {directory} of its own.",
            hint=_HINT,
            details=str(error),
        ) from error


def _mount_over(init_pid: int, directory: Path, number: int, inside: Callable[[str], Path]) -> None:
    copy = inside(f"{_COPIES}/{number}")
    copy.parent.mkdir(exist_ok=True)
    shutil.copytree(directory, copy, symlinks=True, ignore=_sockets)
    mounts.bind(init_pid, f"{_COPIES}/{number}", directory)


def _is_temporary(directory: Path) -> bool:
    """Return whether a directory is small and lies below one of the system's directories for temporary files."""
    roots = {Path("/tmp"), Path("/var/tmp"), Path(tempfile.gettempdir())}  # noqa: S108 - read only
    if directory in roots or not any(root in directory.parents for root in roots):
        return False
    sizes = list(_sizes_below(directory))
    return len(sizes) <= _MAX_DIRECTORY_ENTRIES and sum(sizes) <= _MAX_DIRECTORY_BYTES


def _sizes_below(directory: Path) -> Iterator[int]:
    """Yield the length of every entry below a directory, in bytes; the other program may remove some meanwhile."""
    for folder, names, files in os.walk(directory):
        for name in (*names, *files):
            with suppress(FileNotFoundError):
                yield Path(folder, name).lstat().st_size


def _sockets(directory: str, names: list[str]) -> set[str]:
    """Return those names in a directory that cannot be copied."""
    kinds = {name: stat.S_IFMT(Path(directory, name).lstat().st_mode) for name in names}
    return {
        name
        for name, kind in kinds.items()
        if kind not in (stat.S_IFLNK, stat.S_IFREG, stat.S_IFDIR)
    }
