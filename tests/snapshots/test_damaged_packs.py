"""A suspend relies on no pack that something else has damaged: its kernel comes back with all of its data, or runs on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.snapshots.test_failing_saves import assert_runs_on

HOLDER = """
    import hashlib, os, time
    memory = os.urandom(8 << 20)
    digest = hashlib.sha256(memory).hexdigest()
    n = 0
    while True:
        n += 1
        assert hashlib.sha256(memory).hexdigest() == digest
        print(n, flush=True)
        time.sleep(0.01)
"""


def flip(path: Path) -> None:
    overwrite(path, bytes([path.read_bytes()[path.stat().st_size // 2] ^ 1]))


def zero(path: Path) -> None:
    overwrite(path, bytes(1 << 20))


def overwrite(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace(path: Path) -> None:
    """Put a damaged copy in its place, with the time of the original."""
    copy = path.with_suffix(".copy")
    shutil.copy2(path, copy)
    zero(copy)
    facts = path.stat()
    os.utime(copy, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    copy.rename(path)


DAMAGES = [flip, zero, truncate, Path.unlink, replace]


def packs_of(store) -> list[Path]:
    return sorted((store.root / "packs").glob("*.pack"))


def largest(store) -> Path:
    return max(packs_of(store), key=lambda path: path.stat().st_size)


@pytest.fixture
def program(run):
    started = run(HOLDER)
    started.lines(more_than=1)
    return started


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_suspend_stores_again_what_was_damaged(program, damage):
    program.save()
    damage(largest(program.store))
    saved = program.save(stop=True)
    assert saved.manifest.info.sizes.new_bytes > 1 << 17
    program.store.verify(saved.manifest.info.snapshot_id)
    program.resume(saved.manifest.info.snapshot_id)
    assert_runs_on(program)
