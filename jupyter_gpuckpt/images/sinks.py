"""Sinks that write a stream to a file."""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from pathlib import Path
from typing import Self

import numpy as np

from ..errors import HostError, is_disk_full
from ..linux.beneath import is_tmpfs
from ..linux.pwrite import pwrite_all
from .unpack_client import Share


class FileSink:
    """A sink that writes a file.

    `target`: a path (created, 0600, where there is none), or the number of a descriptor open for reading and writing, which stays
    open. `prepare` empties the file and allocates the whole length, so that no write fails later for want of room.
    `write` is thread-safe.
    """

    module = __name__

    def __init__(self, target: Path | int) -> None:
        self._target = target
        if isinstance(target, int):
            self._descriptor = target
        else:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(target, flags, 0o600)
            weakref.finalize(self, os.close, self._descriptor)
        self._mapping: np.ndarray[tuple[int], np.dtype[np.uint8]] | None = None

    def prepare(self, length: int) -> None:
        """Make the file `length` bytes of zeros. Raises HostError if there is no room, and OSError."""
        found, on_tmpfs = os.fstat(self._descriptor), is_tmpfs(self._descriptor)
        # A file without pages is zeros already. Its size stays: CRIU compares the size of staging files at the same time.
        if found.st_size != length or found.st_blocks or not on_tmpfs:
            os.ftruncate(self._descriptor, 0)
            os.ftruncate(self._descriptor, length)
        if not length:
            return
        try:
            os.posix_fallocate(self._descriptor, 0, length)
        except OSError as error:
            if is_disk_full(error):
                facts = os.fstatvfs(self._descriptor)
                raise HostError(
                    f"There is no room for {length:,} bytes in {self._target}: "
                    f"{facts.f_bavail * facts.f_frsize:,} bytes are free.",
                    hint="Free memory or disk space there and try again.",
                ) from error
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
        else:
            if on_tmpfs:
                self._map()

    def share(self) -> Share:
        """Return the description of this sink for another process."""
        mapped = b"mapped" if self._mapping is not None else b""
        return Share(f"{__name__}:shared_file", self._descriptor, mapped)

    def _map(self) -> None:
        # Writes to one tmpfs file exclude each other; stores to its mapping do not.
        mapped = mmap.mmap(self._descriptor, os.fstat(self._descriptor).st_size)
        self._mapping = np.frombuffer(mapped, np.uint8)

    def write(self, offset: int, data: memoryview) -> None:
        """Write `data` at `offset`. Raises OSError."""
        if self._mapping is not None:
            # numpy copies without the GIL; a mapping's own slices are assigned under it.
            self._mapping[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
            return
        pwrite_all(self._descriptor, data, offset)


class WindowSink:
    """A sink that makes a file of the bytes of a stream between two offsets. Use it as a context manager."""

    def __init__(self, target: Path, begin: int, end: int) -> None:
        self._begin, self._end = begin, end
        target.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(target, flags, 0o600)
        os.ftruncate(self._descriptor, end - begin)

    def write(self, offset: int, data: memoryview) -> None:
        """Write what of `data` is between the offsets. Raises OSError."""
        first, last = max(self._begin, offset), min(self._end, offset + len(data))
        if first < last:
            part = data[first - offset : last - offset]
            pwrite_all(self._descriptor, part, first - self._begin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._descriptor)


def shared_file(descriptor: int, data: bytes) -> FileSink:
    """Return the sink that another process prepared and described by `FileSink.share`."""
    sink = FileSink(descriptor)
    if data:
        sink._map()
    return sink
