"""Landlock sandboxes, of which Linux shows nothing and CRIU saves nothing."""

from __future__ import annotations

import ctypes

import pytest

from jupyter_gpuckpt.engine.tree import landlock, launch
from jupyter_gpuckpt.engine.tree.standstill import Standstill
from jupyter_gpuckpt.errors import KernelNotCheckpointable
from jupyter_gpuckpt.host import processes
from tests.conftest import wait_for
from tests.parameters import some_slow
from tests.snapshots.test_failing_saves import assert_runs_on

pytestmark = pytest.mark.skipif(
    ctypes.CDLL(None).syscall(444, None, 0, 1) <= 0, reason="this Linux has no Landlock"
)

#: Defines `enter()`, by which a thread forbids itself by raw system calls to remove directories.
ENTER = """
    import ctypes, os, struct, subprocess, sys, threading, time
    libc = ctypes.CDLL(None, use_errno=True)
    def enter(no_new_privs=True):
        ruleset = libc.syscall(444, struct.pack("QQ", 1 << 4, 0), 16, 0)
        assert ruleset >= 0
        assert not no_new_privs or libc.prctl(38, 1, 0, 0, 0) == 0
        assert libc.syscall(446, ruleset, 0) == 0
        os.close(ruleset)
"""
LOOP = """
    n = 0
    while True:
        n += 1
        print(n, flush=True)
        time.sleep(0.01)
"""
CHILD = """
    if os.fork() == 0:
        enter()
        os.execvp("sleep", ["sleep", "1000"])
"""
#: The sandbox of an orphan whose parent has ended: nothing is left of the process that entered it.
ORPHAN = """
    if os.fork() == 0:
        enter()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "1000"])
        os._exit(0)
    os.wait()
"""
THREAD = """
    def sleeper():
        enter()
        os.execvp("sleep", ["sleep", "1000"]) if os.fork() == 0 else time.sleep(1000)
    threading.Thread(target=sleeper, daemon=True).start()
"""


@pytest.mark.parametrize(
    "begin",
    some_slow([CHILD, ORPHAN, THREAD], {CHILD, THREAD}),
    ids=["child", "orphan", "thread"],
)
@pytest.mark.parametrize("stop", some_slow([False, True], {True}), ids=["save", "suspend"])
def test_a_sandbox_is_refused_by_name_and_the_kernel_runs_on(
    run, begin: str, *, stop: bool
) -> None:
    program = run(ENTER + begin + LOOP)
    program.lines(more_than=3)
    wait_for(lambda: "sleep" in map(processes.name, launch.pids(program.tree)))
    with pytest.raises(
        KernelNotCheckpointable, match=r"sandbox.*Landlock.*(sleep|python)"
    ) as caught:
        program.save(stop=stop)
    assert caught.value.hint
    assert_runs_on(program)


def test_a_sandbox_that_has_ended_is_no_obstacle_and_the_next_one_is_noticed_after_a_resume(
    run,
) -> None:
    program = run(
        ENTER
        + """
    if os.fork() == 0:
        enter()
        os._exit(0)
    os.wait()
    while not os.path.exists("go"):
        print("waiting", flush=True)
        time.sleep(0.01)
    """
        + CHILD
        + LOOP
    )
    program.lines(more_than=3)
    assert not program.tree.inside(landlock._UNUSED).exists()
    program.resume(program.save(stop=True).manifest.info.snapshot_id)
    assert program.tree.inside(landlock._UNUSED).exists()
    (program.log.parent / "go").touch()
    wait_for(lambda: "sleep" in map(processes.name, launch.pids(program.tree)))
    with pytest.raises(KernelNotCheckpointable, match="Landlock"):
        program.save(stop=True)


def test_where_init_is_not_asked_every_thread_is(run) -> None:
    program = run(ENTER + CHILD + LOOP)
    program.lines(more_than=3)
    wait_for(lambda: "sleep" in map(processes.name, launch.pids(program.tree)))
    with pytest.raises(KernelNotCheckpointable, match="Landlock"):
        program.save()
    other = run(ENTER + LOOP)
    other.lines(more_than=3)
    other.tree.inside(landlock._UNUSED).unlink()
    other.save()
    assert_runs_on(other)


@pytest.mark.parametrize(
    "fewer_rights",
    [
        "os.setgid(12345); os.setuid(12345)",
        "libc.capset(struct.pack('II', 0x20080522, 0), bytes(24))",
    ],
    ids=["another user", "no capability"],
)
def test_fewer_rights_are_not_taken_for_a_sandbox(run, fewer_rights: str) -> None:
    program = run(
        ENTER
        + f"""
    if os.fork() == 0:
        libc.prctl(38, 1, 0, 0, 0)
        {fewer_rights}
        print(1, flush=True)
        while True:
            time.sleep(1000)
    if os.fork() == 0:
        enter()
        os._exit(0)
    os.wait()
    """
        + LOOP
    )
    program.lines(more_than=5)
    assert not program.tree.inside(landlock._UNUSED).exists()
    standing = Standstill(program.tree)
    standing.begin()
    landlock.refuse(program.tree, standing.pids)
    standing.end()
    assert_runs_on(program)
