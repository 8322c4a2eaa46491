"""What forked processes share copy-on-write stays shared, and what a save and a resume need is counted so."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from jupyter_gpuckpt.engine import preflight
from jupyter_gpuckpt.engine.gpu.ferry import ferry_windows
from jupyter_gpuckpt.engine.settings import EngineSettings
from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.errors import FreezeFailed, HostIncompatible, KernelNotCheckpointable
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.snapshots import room
from jupyter_gpuckpt.wire.progress import Progress, ProgressRecord, Stage
from tests.conftest import left_in
from tests.programs import NOISE

MB = 1 << 20

#: A pool of workers that have inherited 200 MB; one of them has changed a page here and there, as counts of references do, one has
#: freed some, and each has memory of its own.
POOL = f"""
    {NOISE}; import hashlib, time
    data = bytearray(noise(200 << 20))
    number = 0
    for worker in (1, 2, 3):
        if not os.fork():
            number = worker
            break
    if number == 1:
        for at in range(0, 200 << 20, 300_000):
            data[at] ^= 255
    if number == 2:
        del data[150 << 20 :]
    own = os.urandom(1 << 20)
    while True:
        digest = hashlib.blake2b(data)
        digest.update(own)
        print(number, os.getppid(), digest.hexdigest(), flush=True)
        time.sleep(1)
"""


def said(program, after: int) -> dict[str, str]:
    """Return the output of each of the four processes, from this line on."""
    count = after
    while True:
        lines = program.lines(more_than=count)
        words = {line.split()[0]: line for line in lines[after:]}
        if len(words) == 4:
            return words
        count = len(lines)


@pytest.fixture
def pool(run):
    """Return the pool and its output."""
    program = run(POOL)
    return program, said(program, 0)


@pytest.mark.slow
def test_a_pool_shares_its_memory_after_a_resume_and_needs_no_more(
    pool, engine: EngineSettings, monkeypatch
):
    program, before = pool
    used = launch.memory_bytes(program.tree)
    assert 200 * MB < used < 300 * MB
    monkeypatch.setattr(processes, "mem_available", lambda pid=None: 350 * MB)
    snapshot_id = program.save(stop=True).manifest.info.snapshot_id
    count = len(program.lines())
    monkeypatch.setattr(processes, "mem_available", lambda pid=None: 150 * MB)
    with pytest.raises(HostIncompatible, match=r"[34].. MB of memory are needed, 150 MB are free"):
        program.resume(snapshot_id)
    # Of the worker with pages here and there it is not known before; together they have 800 MB.
    monkeypatch.setattr(processes, "mem_available", lambda pid=None: 600 * MB)
    told: list[ProgressRecord] = []
    shared: list[int] = []
    # Whether GPU memory is filled window by window is decided by what is not shared.
    monkeypatch.setattr(
        ferry_windows, "is_short_for", lambda manifest, shared_bytes: shared.append(shared_bytes)
    )
    program.resume(snapshot_id, progress=Progress(told.append, interval=0))
    assert shared[0] > 400 * MB
    pages = [record for record in told if record.stage == Stage.PAGES]
    assert [record.done_bytes for record in pages] == sorted(record.done_bytes for record in pages)
    assert {record.total_bytes for record in pages} == {pages[-1].done_bytes}
    assert said(program, count) == before
    assert launch.memory_bytes(program.tree) < used + 50 * MB
    assert left_in(engine.spill_dir) == set()


@pytest.mark.slow
def test_a_disk_without_room_for_what_forked_processes_share_is_named_before_anything_is_tried(
    pool, engine: EngineSettings, small_disk
):
    program, before = pool
    program.engine = replace(engine, spill_dir=small_disk / "spill")
    count = len(program.lines())
    with pytest.raises(KernelNotCheckpointable, match=r"[5-9].. MB are needed on the disk"):
        program.save(stop=True)
    assert said(program, count) == before
    saved = program.save()
    assert "needed on the disk" in saved.warnings[0]
    launch.kill(program.tree)
    count = len(program.lines())
    with pytest.raises(HostIncompatible, match="MB are needed on the disk") as caught:
        program.resume(saved.manifest.info.snapshot_id)
    assert str(small_disk) in caught.value.hint
    program.engine = engine
    program.resume(saved.manifest.info.snapshot_id)
    assert said(program, count) == before


def test_copies_of_what_forked_processes_share_are_counted_before_a_save(
    pool, engine: EngineSettings, monkeypatch
):
    program, _ = pool
    monkeypatch.setattr(processes, "mem_available", lambda pid=None: 350 * MB)
    with pytest.raises(FreezeFailed, match="not enough memory"):
        preflight.plan(program.tree, engine, private_shm=True, stop=False, gpu_bytes=0)
    preflight.plan(program.tree, engine, private_shm=True, stop=True, gpu_bytes=0)


#: As POOL; each worker has given back another part of the memory, and a part of the parent's has another property.
TRIMMED = f"""
    {NOISE}; import hashlib, mmap, time
    mapped = mmap.mmap(-1, 80 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapped.write(noise(80 << 20))
    number = 0
    for worker in (1, 2, 3):
        if not os.fork():
            number = worker
            mapped.resize((60 + worker) << 20)
            break
    if not number:
        mapped.madvise(mmap.MADV_DONTFORK, 0, 1 << 20)
    while True:
        print(number, os.getppid(), hashlib.blake2b(mapped).hexdigest(), flush=True)
        time.sleep(1)
"""


def test_what_is_left_of_an_area_stays_shared_if_a_process_gave_back_a_part(run):
    program = run(TRIMMED)
    before = said(program, 0)
    used = launch.memory_bytes(program.tree)
    count = len(program.lines())
    manifest = program.save(stop=True).manifest
    shared = [plan.shared_bytes for plan in room._plans(manifest, program.store)]
    assert sum(shared) > 3 * 55 * MB
    program.resume(manifest.info.snapshot_id)
    assert said(program, count) == before
    assert launch.memory_bytes(program.tree) < used + 20 * MB
