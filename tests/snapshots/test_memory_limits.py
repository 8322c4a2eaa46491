"""A save where memory is short: refused or given up, and the kernel lives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jupyter_gpuckpt.errors import FreezeFailed
from jupyter_gpuckpt.wire.progress import Progress, ProgressRecord, Stage
from tests.memory_groups import Group, memory_group

MB = 1 << 20

#: Takes its memory when it is told to, and then rewrites all of it again and again.
REWRITER = """
    import os, time
    while not os.path.exists("go"):
        time.sleep(0.01)
    data = bytearray(os.urandom(250 << 20))
    count = 0
    while True:
        count += 1
        for at in range(0, len(data), 4096):
            data[at] = count & 255
        print(count, flush=True)
"""


@pytest.fixture
def group() -> Iterator[Group]:
    # `run`, asked for after this one, has ended the group's processes at its end.
    with memory_group() as made:
        yield made


def limited(run, group: Group, room: int):
    """Return a rewriter in a group with `room` bytes to spare."""
    program = run(REWRITER)
    for pid in (program.tree.init_pid, program.tree.keeper_pid, program.tree.kernel_pid):
        group.add(pid)
    (program.log.parent / "go").touch()
    program.lines(more_than=1)
    group.limit(group.used() + room)
    return program


def test_a_save_without_headroom_is_refused_before_anything_is_touched(group, run) -> None:
    program = limited(run, group, 60 * MB)
    with pytest.raises(FreezeFailed) as caught:
        program.save()
    assert "memory" in caught.value.message
    assert caught.value.hint
    program.fresh_line()
    assert group.kills() == 0


def test_a_save_that_runs_out_of_memory_is_given_up_and_the_kernel_lives(group, run) -> None:
    program = limited(run, group, 200 * MB)

    def wait_until_all_is_rewritten(record: ProgressRecord) -> None:
        if record.stage == Stage.STORE and record.done_bytes == 0:
            program.lines(more_than=len(program.lines()) + 2)

    with pytest.raises(FreezeFailed) as caught:
        program.save(progress=Progress(wait_until_all_is_rewritten))
    assert "Memory became short" in caught.value.message
    assert "Suspend" in caught.value.hint
    program.fresh_line()
    assert group.kills() == 0
    assert program.store.snapshots() == []
    saved = program.save(stop=True)
    count = len(program.lines())
    program.resume(saved.manifest.info.snapshot_id)
    assert program.lines(more_than=count)
