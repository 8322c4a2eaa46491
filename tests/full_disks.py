"""Small real file systems for tests, which can be filled to the last byte."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.conftest import wait_for

FILLER, FILES = "filler", "files"


@contextmanager
def small_disk(where: Path, image: Path, *, megabytes: int = 48) -> Iterator[Path]:
    """Yield `where` with an ext4 file system of this size mounted on it; skip the test if that is not permitted."""
    where.mkdir(exist_ok=True)
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    # Without blocks that are reserved for root, root finds the disk as full as users do.
    subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", str(image)], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(where)], check=False)
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def fill(disk: Path) -> None:
    """Write a file until a disk has no block left, also for a file of another program that runs meanwhile."""
    wait_for(lambda: _fill(disk) or is_full(disk))


def _fill(disk: Path) -> None:
    with suppress(OSError), (disk / FILLER).open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while file.write(b"x" * size):
                    pass


def empty(disk: Path) -> None:
    """Remove what `fill` has written."""
    (disk / FILLER).unlink()


def is_full(disk: Path) -> bool:
    """Return whether no block is free."""
    return os.statvfs(disk).f_bavail == 0


def use_all_files(disk: Path) -> None:
    """Make empty files until a disk allows no further one, also for another program that runs meanwhile."""
    folder = disk / FILES
    folder.mkdir(exist_ok=True)
    wait_for(lambda: _use_all_files(folder) or has_no_file_left(disk))


def _use_all_files(folder: Path) -> None:
    with suppress(OSError):
        while True:
            os.close(tempfile.mkstemp(dir=folder)[0])


def has_no_file_left(disk: Path) -> bool:
    """Return whether a disk allows no further file."""
    return os.statvfs(disk).f_favail == 0


def leave(disk: Path, part: float) -> None:
    """Write a file until only this part of a disk is free."""
    facts = os.statvfs(disk)
    blocks = facts.f_bavail - int(part * facts.f_blocks)
    with (disk / FILLER).open("ab") as file:
        os.posix_fallocate(file.fileno(), file.tell(), blocks * facts.f_frsize)
