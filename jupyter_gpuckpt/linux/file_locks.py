"""Locks between processes of one machine, held on files (flock)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock of this file, which is created if missing; wait while another process holds it. Raises OSError."""
    with _opened(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def alone_at_once(path: Path) -> Iterator[bool]:
    """Try to hold the lock of this file without waiting; yield whether it is held. Raises OSError."""
    with _opened(path) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def eviction(data_dir: Path, remote: str) -> Path:
    """Return the path of the lock held while a local copy is evicted to a remote, and while that remote or its content is removed."""
    return data_dir / "remotes" / f"{remote}.evicting"


def lock_or_refuse(path: Path) -> int:
    """Return a descriptor that holds the lock on `path` until it is closed, or -1 if another process holds it."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return -1
        # The last holder may have removed the file between the open and the lock.
        if path.exists() and os.fstat(fd).st_ino == path.stat().st_ino:
            return fd
        os.close(fd)


def is_locked(path: Path) -> bool | None:
    """Return whether a process holds the lock of this file exclusively; None if there is no such file. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # Shared, so that two processes that ask at the same time do not take each other for a holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def holding(path: Path) -> Iterator[None]:
    """Hold the lock of an existing file or folder, if its file system has locks; wait while another process holds it. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
