"""Outlines of files: the few facts that tell, at little cost, whether a file is the same as at another time.

A small file is read whole, of a large one only the beginning and the end. A file may lie on a network share whose server does not
answer, and then a call waits for ever: files are examined by threads, one for each mount, for which nothing waits long.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

#: A longer file is not read whole: these are the most bytes of a whole file, and those of each end of a longer one.
WHOLE_BYTES, _END_BYTES = 16 << 20, 1 << 20
#: The most bytes that are read for one call; later files get no digest.
_MAX_BYTES = 128 << 20
#: How long files on one mount may take. A thread that is late ends with its present file.
_PATIENCE_SECONDS = 5.0
_MAX_DIGESTS = 20_000

#: Device, inode, size and time of the last change of the content (nanoseconds).
Version = tuple[int, int, int, int]


class Outline(NamedTuple):
    """The facts about a file. `digest`: of its first bytes, as many as were wanted; empty if they were not read."""

    mode: int
    version: Version
    digest: str = ""

    @property
    def length(self) -> int:
        """The number of its bytes."""
        return self.version[2]

    @property
    def mtime_ns(self) -> int:
        """The time of the last change of its content."""
        return self.version[3]


class Wanted(NamedTuple):
    """A file to examine, and how many of its bytes (None: all). It is not read if it still has the version `known`."""

    path: Path
    length: int | None = None
    known: Version | None = None


class FileOutlines:
    """A reader of outlines, with a cache of digests. Thread-safe.

    `patience`: how many seconds the files on one mount may take.
    """

    def __init__(self, patience: float = _PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._digests: dict[tuple[Version, int, int], str] = {}
        #: The threads that were late, by mount: until such a thread ends, no other one examines files there.
        self._late: dict[str, threading.Thread] = {}

    def read(self, wanted: Mapping[str, Wanted]) -> dict[str, Outline | OSError]:
        """Return the outline of each file, or its error; a file that cannot be examined in time has a TimeoutError."""
        found: dict[str, Outline | OSError] = {}
        batch = _Batch(self, found)
        threads = {
            mount: threading.Thread(
                target=batch.examine, args=(files,), name="file-outlines", daemon=True
            )
            for mount, files in _by_mount(wanted).items()
            if not self._is_late(mount)
        }
        for thread in threads.values():
            thread.start()
        deadline = time.monotonic() + self._patience
        for mount, thread in threads.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                with self._lock:
                    self._late[mount] = thread
        batch.is_over = True
        late = TimeoutError("the disk does not answer")
        # A copy, because a late thread may still add to the original.
        return dict.fromkeys(wanted, late) | dict(found)

    def digest(self, file: Wanted, status: os.stat_result, may_read: Callable[[int], bool]) -> str:
        """Return the digest of a file's first bytes, from the cache if it is unchanged; empty if it may not be read, or is written now."""
        length = status.st_size if file.length is None else file.length
        key = (version(status), status.st_ctime_ns, length)
        with self._lock:
            if key in self._digests:
                return self._digests[key]
        if length > status.st_size or not may_read(min(length, WHOLE_BYTES)):
            return ""
        # Without O_NONBLOCK a lease that a process has taken meanwhile would be waited for.
        descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            made = _digest(descriptor, length)
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if (version(after), after.st_ctime_ns) == key[:2]:
            with self._lock:
                while len(self._digests) >= _MAX_DIGESTS:
                    del self._digests[next(iter(self._digests))]
                self._digests[key] = made
        return made

    def _is_late(self, mount: str) -> bool:
        with self._lock:
            return mount in self._late and self._late[mount].is_alive()


class _Batch:
    """One call of `FileOutlines.read`, whose threads share a limit of bytes."""

    def __init__(self, outlines: FileOutlines, found: dict[str, Outline | OSError]) -> None:
        self._outlines, self._found = outlines, found
        self._left, self._lock = _MAX_BYTES, threading.Lock()
        self.is_over = False

    def examine(self, files: Iterable[tuple[str, Wanted]]) -> None:
        """Examine the files one after the other."""
        for name, file in files:
            if self.is_over:
                return
            try:
                self._found[name] = self._outline(file)
            except OSError as error:
                self._found[name] = error

    def _outline(self, file: Wanted) -> Outline:
        status = os.stat(file.path)
        outline = Outline(status.st_mode, version(status))
        if not stat.S_ISREG(status.st_mode) or outline.version == file.known:
            return outline

        def may_read(length: int) -> bool:
            return status.st_ino not in self._leased and self._has_left(length)

        with suppress(OSError):  # it may be examined, but not read
            digest = self._outlines.digest(file, status, may_read)
            return outline._replace(digest=digest)
        return outline

    @cached_property
    def _leased(self) -> set[int]:
        # Linux waits some 10 ms before it lists locks, and most batches read no file.
        return _leased()

    def _has_left(self, length: int) -> bool:
        with self._lock:
            self._left -= length
            return self._left >= 0 and not self.is_over


def _leased() -> set[int]:
    """Return the inodes of files of which a process holds a lease for writing (man 2 fcntl).

    If one is opened, Linux sends the process a signal that ends most programs, and the lease is lost.
    """
    try:
        lines = map(str.split, Path("/proc/locks").read_text().splitlines())
    except OSError:
        return set()
    return {
        int(words[5].rpartition(":")[2])
        for words in lines
        if len(words) > 5 and words[1] == "LEASE" and words[3] == "WRITE"
    }


def version(status: os.stat_result) -> Version:
    """Return what tells a file apart from others and from itself at other times, on this machine."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _digest(descriptor: int, length: int) -> str:
    hasher = blake3()
    ranges = [(0, length)]
    if length > WHOLE_BYTES:
        ranges = [(0, _END_BYTES), (length - _END_BYTES, length)]
    for begin, end in ranges:
        for at in range(begin, end, _END_BYTES):
            hasher.update(os.pread(descriptor, min(_END_BYTES, end - at), at))
    return hasher.hexdigest()


def _by_mount(wanted: Mapping[str, Wanted]) -> dict[str, list[tuple[str, Wanted]]]:
    """Return the files by the mounts on which they probably lie: asking for the mount of a file itself might wait."""
    mounts = sorted(_mounts(), key=len, reverse=True)
    found: dict[str, list[tuple[str, Wanted]]] = {}
    for name, file in wanted.items():
        mount = next((one for one in mounts if name.startswith(one.rstrip("/") + "/")), "/")
        found.setdefault(mount, []).append((name, file))
    return found


def _mounts() -> set[str]:
    """Return the mount points (man proc_pid_mountinfo: field 5, special characters as octal numbers)."""
    with suppress(OSError, IndexError, ValueError):
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return {line.split()[4].encode().decode("unicode_escape") for line in lines}
    return set()
