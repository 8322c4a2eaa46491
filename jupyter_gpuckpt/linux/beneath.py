"""Access to files below one folder, by descriptors of their folders: no link is followed, so no path leads out of it.

Paths are relative to the folder, with `/` between names. Everything raises OSError.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# linux/fs.h
_RENAME_NOREPLACE = 1
# linux/magic.h
_TMPFS_MAGIC = 0x01021994
_STATFS_BYTES = 256

_libc = ctypes.CDLL(None, use_errno=True)


class Beneath:
    """A folder whose files are reached without following links. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        os.close(self.descriptor)

    @contextmanager
    def parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Yield the descriptor of a path's folder, and its last name."""
        *above, name = path.split("/")
        here = self.descriptor
        try:
            for one in above:
                below = os.open(one, _FOLDER, dir_fd=here)
                if here != self.descriptor:
                    os.close(here)
                here = below
            yield here, name
        finally:
            if here != self.descriptor:
                os.close(here)

    def status(self, path: str) -> os.stat_result | None:
        """Return the status of what is at a path, of a link itself; None if nothing is there."""
        try:
            with self.parent(path) as (folder, name):
                return os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:  # a link in place of a folder
                return None
            raise

    def open(self, path: str, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
        """Open a regular file and return its descriptor; with O_CREAT it must not exist."""
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        if flags & os.O_CREAT:
            flags |= os.O_EXCL
        with self.parent(path) as (folder, name):
            opened = os.open(name, flags, mode, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise OSError(errno.EINVAL, "not a file", path)
        return opened

    def move(self, path: str, target: str, *, replace: bool = False) -> None:
        """Rename; unless `replace`, nothing may be at the target."""
        with self.parent(path) as (folder, name), self.parent(target) as (other, new):
            if replace:
                os.rename(name, new, src_dir_fd=folder, dst_dir_fd=other)
                return
            names = os.fsencode(name), os.fsencode(new)
            flags = ctypes.c_uint(_RENAME_NOREPLACE)
            if not _libc.renameat2(folder, names[0], other, names[1], flags):
                return
            number = ctypes.get_errno()
            if number not in {errno.EINVAL, errno.ENOSYS}:
                raise OSError(number, os.strerror(number), target)
            # The file system does not have it, as some network ones.
            if self.status(target) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
            os.rename(name, new, src_dir_fd=folder, dst_dir_fd=other)


def is_tmpfs(descriptor: int) -> bool:
    """Return whether a file lies on a tmpfs."""
    facts = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(descriptor, facts) != 0:
        return False
    return ctypes.c_long.from_buffer(facts).value == _TMPFS_MAGIC


def sync_file_system(descriptor: int) -> None:
    """Write all that was written to the file system of a descriptor to its disk."""
    if _libc.syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
