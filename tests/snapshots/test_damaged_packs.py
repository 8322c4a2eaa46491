"""A suspend relies on no pack that something else has damaged: its kernel comes back with all of its data, or runs on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from jupyter_gpuckpt.errors import KernelNotCheckpointable, ObjectCorrupt
from jupyter_gpuckpt.store.index.pack_folder import PackFolder
from jupyter_gpuckpt.wire.manifest_records import Cause
from jupyter_gpuckpt.wire.progress import Stage
from tests.parameters import some_slow
from tests.snapshots.test_failing_saves import assert_runs_on
from tests.snapshots.test_rehearsal import at

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


@pytest.mark.parametrize("damage", some_slow(DAMAGES, [flip, Path.unlink]))
def test_a_suspend_stores_again_what_was_damaged(program, damage):
    program.save()
    damage(largest(program.store))
    saved = program.save(stop=True)
    assert saved.manifest.info.sizes.new_bytes > 1 << 17
    program.store.verify(saved.manifest.info.snapshot_id)
    program.resume(saved.manifest.info.snapshot_id)
    assert_runs_on(program)


def test_a_second_suspend_with_nothing_changed_stores_again_what_was_damaged(program):
    first = program.save(stop=True).manifest.info.snapshot_id
    program.resume(first)
    flip(largest(program.store))
    with pytest.raises(ObjectCorrupt):
        program.store.verify(first)
    saved = program.save(stop=True, cause=Cause.RECLAIM)
    assert saved.warnings == []
    assert saved.manifest.info.sizes.new_bytes > 1 << 20
    program.resume(saved.manifest.info.snapshot_id)
    assert_runs_on(program)


@pytest.mark.parametrize("damage", some_slow(DAMAGES, [zero]))
def test_damage_during_a_suspend_leaves_the_kernel_running(program, damage):
    program.save()
    oldest = packs_of(program.store)[0]
    at_rehearsal = at(Stage.REHEARSAL, lambda: damage(oldest))
    with pytest.raises(KernelNotCheckpointable, match=r"removed, cut short or changed|damaged"):
        program.save(stop=True, progress=at_rehearsal)
    assert_runs_on(program)
    saved = program.save(stop=True)
    program.resume(saved.manifest.info.snapshot_id)
    assert_runs_on(program)


def test_a_copied_store_is_relied_on_with_a_warning_only_when_time_is_short(program):
    program.save()
    for path in packs_of(program.store):
        copy = path.with_suffix(".copy")
        shutil.copy2(path, copy)
        copy.rename(path)
    late = program.save(cause=Cause.RECLAIM)
    assert any("no time to read them" in one for one in late.warnings)
    assert late.manifest.info.sizes.new_bytes < 1 << 20
    saved = program.save(stop=True)
    assert saved.warnings == []
    assert saved.manifest.info.sizes.new_bytes < 1 << 20
    program.resume(saved.manifest.info.snapshot_id)
    assert_runs_on(program)


def test_a_save_looks_at_all_packs_once(program, monkeypatch):
    program.save()
    looks, found = [], PackFolder.found
    monkeypatch.setattr(PackFolder, "found", lambda folder: looks.append(1) or found(folder))
    program.save(stop=True)
    assert len(looks) == 1
