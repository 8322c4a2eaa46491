"""Digests of programs and libraries, by which a resume detects that one was replaced by another of the same size.

A digest is cached by the file's identity (device, inode, size, times of change), so that an unchanged file is read once. Large
files are read in the background.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
from blake3 import blake3

from ..wire import decoding
from .file_outlines import FileOutlines, version

logger = logging.getLogger(__name__)

#: Device, inode, size, mtime and ctime (nanoseconds). A file for which all are unchanged has the same content.
Identity = tuple[int, int, int, int, int]

#: The maximum number of cached digests; the oldest are dropped.
_MAX_DIGESTS = 50_000


class FileDigests:
    """A cache of file digests, stored in the file `path` across restarts (None: in memory only). Thread-safe.

    `outlines`: those of the files of users, which are compared less strictly.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path, self.outlines = path, FileOutlines()
        self._lock = threading.Lock()
        self._known = _load(path)
        self._unsaved = False
        self._background = ThreadPoolExecutor(1, "file-digests", initializer=_lower_priority)

    def of(self, path: str | Path) -> str:
        """Return the digest of a file in hexadecimal; read the file if the digest is not cached. Raises OSError."""
        identity = _identity(os.stat(path))
        found = self._get(identity)
        if not found:
            found = blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
            # The digest of a file that was written meanwhile is not cached.
            if _identity(os.stat(path)) == identity:
                self._put(identity, found)
        return found

    def known(self, path: str | Path) -> str:
        """Return the cached digest of a file, else an empty string; never raises."""
        with suppress(OSError):
            return self._get(_identity(os.stat(path)))
        return ""

    def learn(self, paths: Iterable[str], *, max_bytes: int) -> None:
        """Compute missing digests, smallest files first: up to `max_bytes` of files now, the others in the background."""
        later, left = [], max_bytes
        for size, path in sorted(self._unknown(paths)):
            left -= size
            if left < 0:
                later.append(path)
            else:
                self._learn(path)
        if later:
            with suppress(RuntimeError):  # closed meanwhile
                self._background.submit(self._learn_all, later)
        else:
            self.save()

    def save(self) -> None:
        """Write new digests to disk. Errors are only logged: a digest that was not written is computed again."""
        with self._lock:
            if self._path is None or not self._unsaved:
                return
            kept = dict(list(self._known.items())[-_MAX_DIGESTS:])
            self._unsaved = False
        temporary = self._path.with_suffix(".tmp")
        try:
            temporary.write_bytes(msgspec.msgpack.encode(kept))
            temporary.replace(self._path)
        except OSError as error:
            logger.warning("digests of programs and libraries could not be written: %s", error)

    def close(self) -> None:
        """Stop the background work; files that were not read yet are read another time."""
        self._background.shutdown(wait=True, cancel_futures=True)
        self.save()

    def _unknown(self, paths: Iterable[str]) -> Iterable[tuple[int, str]]:
        for path in paths:
            with suppress(OSError):
                status = os.stat(path)
                if not self._get(_identity(status)):
                    yield status.st_size, path

    def _learn_all(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._learn(path)
        self.save()

    def _learn(self, path: str) -> None:
        with suppress(OSError):
            self.of(path)

    def _get(self, identity: Identity) -> str:
        with self._lock:
            return self._known.get(identity, "")

    def _put(self, identity: Identity, digest: str) -> None:
        with self._lock:
            self._known[identity] = digest
            self._unsaved = True


def _identity(status: os.stat_result) -> Identity:
    return *version(status), status.st_ctime_ns


def _load(path: Path | None) -> dict[Identity, str]:
    if path is None:
        return {}
    try:
        return decoding.from_msgpack(path.read_bytes(), dict[Identity, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        logger.warning("digests of programs and libraries are computed again: %s: %s", path, error)
        return {}


def _lower_priority() -> None:
    # Linux has a priority per thread, and no user waits for this one.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
