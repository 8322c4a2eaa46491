"""User ids that belong to this process of tests alone, also beside another run or after one that was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from contextlib import suppress
from functools import cache
from pathlib import Path

from jupyter_gpuckpt.host import processes

_FIRST, _RANGES, _SIZE = 61000, 30, 100
#: Open for as long as this process lives: a range is its own while it holds the lock.
_locks: list[int] = []


@cache
def first() -> int:
    """Return the first of a hundred user ids, of which a killed run has left nothing."""
    for number in range(_RANGES):
        lock = os.open(f"/tmp/gpuckpt-test-uids-{number}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        _locks.append(lock)
        begin = _FIRST + number * _SIZE
        _clear(range(begin, begin + _SIZE))
        return begin
    raise RuntimeError("other runs of the tests hold all user ids")


def remove(directory: str, name: str) -> None:
    """Remove what lies in a directory for all users under this name, or one that begins with it and a dash."""
    for path in Path(directory).iterdir():
        if path.name == name or path.name.startswith(f"{name}-"):
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _clear(uids: range) -> None:
    """End the processes of these users, and remove what belongs to them where all users write."""
    for pid in processes.every():
        with suppress(OSError):
            if Path(f"/proc/{pid}").stat().st_uid in uids:
                os.kill(pid, signal.SIGKILL)
    for directory in map(Path, ("/tmp", "/dev/shm")):
        for path in directory.iterdir():
            with suppress(FileNotFoundError):  # other tests come and go
                if path.lstat().st_uid in uids:
                    _remove(path)
    for uid in uids:
        remove("/tmp", f"gpuckpt-{uid}")
