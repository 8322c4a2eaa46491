"""A save where memory is short: refused or given up, and the kernel lives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpuckpt.errors import FreezeFailed
from jupyter_gpuckpt.progress import Progress, ProgressRecord, Stage

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


class Group:
    """A control group for memory, of either version."""

    def __init__(self, folder: Path, *, modern: bool) -> None:
        self.folder, self._modern = folder, modern

    def limit(self, count_bytes: int) -> None:
        name = "memory.max" if self._modern else "memory.limit_in_bytes"
        (self.folder / name).write_text(str(count_bytes))

    def used(self) -> int:
        name = "memory.current" if self._modern else "memory.usage_in_bytes"
        return int((self.folder / name).read_text())

    def add(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    def kills(self) -> int:
        path = self.folder / ("memory.events" if self._modern else "memory.oom_control")
        fields = dict(line.split() for line in path.read_text().splitlines())
        return int(fields["oom_kill"])


@pytest.fixture
def group() -> Iterator[Group]:
    root, modern = Path("/sys/fs/cgroup/memory"), False
    if not root.is_dir():
        root, modern = Path("/sys/fs/cgroup"), True
    folder = root / f"gpuckpt-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    made = Group(folder, modern=modern)
    try:
        made.used()
        yield made
    except FileNotFoundError:
        pytest.skip("the controller of memory is not there")
    finally:
        folder.rmdir()  # `run`, asked for after this one, has ended the group's processes


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
