"""What forked processes share copy-on-write stays shared, and what a save and a resume need is counted so."""

from __future__ import annotations

import pytest

from jupyter_gpuckpt.engine import preflight
from jupyter_gpuckpt.engine.settings import EngineSettings
from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.errors import FreezeFailed, HostIncompatible
from jupyter_gpuckpt.host import processes
from tests.conftest import left_in

MB = 1 << 20

#: A pool of workers that have inherited 200 MB; one of them has changed a page here and there, as counts of references do, one has
#: freed some, and each has memory of its own.
POOL = """
    import hashlib, os, time
    data = bytearray(os.urandom(200 << 20))
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
        time.sleep(0.1)
"""


def said(program, after: int) -> dict[str, str]:
    """What each of the four says, from this line on."""
    count = after
    while True:
        lines = program.lines(more_than=count)
        words = {line.split()[0]: line for line in lines[after:]}
        if len(words) == 4:
            return words
        count = len(lines)


@pytest.fixture
def pool(run):
    """The pool, and what it said."""
    program = run(POOL)
    return program, said(program, 0)


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
    program.resume(snapshot_id)
    assert said(program, count) == before
    assert launch.memory_bytes(program.tree) < used + 50 * MB
    assert left_in(engine.spill_dir) == set()


def test_copies_of_what_forked_processes_share_are_counted_before_a_save(
    pool, engine: EngineSettings, monkeypatch
):
    program, _ = pool
    monkeypatch.setattr(processes, "mem_available", lambda pid=None: 350 * MB)
    with pytest.raises(FreezeFailed, match="not enough memory"):
        preflight.plan(program.tree, engine, private_shm=True, stop=False, gpu_bytes=0)
    preflight.plan(program.tree, engine, private_shm=True, stop=True, gpu_bytes=0)
