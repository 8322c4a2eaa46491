"""File locks of a kernel that another program holds when it is to come back: the resume says so at once, and works afterwards."""

from __future__ import annotations

import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from jupyter_gpuckpt.engine.criu import lock_images
from jupyter_gpuckpt.errors import ThawFailed
from tests.conftest import PATIENCE

CODE = """
    import fcntl, os, struct, time
    file = open("locked", "w+")
    {code}
    n = 0
    while True:
        n += 1
        print(n, flush=True)
        time.sleep(0.01)
"""
LOCKS = {
    "flock": "fcntl.flock(file, fcntl.LOCK_EX)",
    "posix": "fcntl.lockf(file, fcntl.LOCK_EX, 10, 5)",
    "ofd": "fcntl.fcntl(file, 37, struct.pack('hhqqi', fcntl.F_WRLCK, 0, 0, 0, 0))",
}


@pytest.mark.parametrize("kind", LOCKS)
def test_a_lock_that_another_program_holds_is_named(run, kind):
    program = run(CODE.format(code=LOCKS[kind]))
    program.fresh_line()
    first, snapshot = program.tree, program.save().manifest.info.snapshot_id
    with pytest.raises(ThawFailed, match="/locked is locked by") as refusal:
        program.resume(snapshot)
    # An OFD lock belongs to no process.
    assert kind == "ofd" or f"process {first.kernel_pid} " in refusal.value.message
    suspended = program.save(stop=True).manifest.info.snapshot_id
    program.resume(suspended)
    program.fresh_line()


def test_a_lease_for_writing_is_kept_and_costs_no_program_its_life(run):
    """Whoever opens the file sends the program a signal, by which it ends."""
    code = "fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)"
    program = run(
        CODE.format(code=code).replace("print(n,", "print(n, fcntl.fcntl(file, fcntl.F_GETLEASE),")
    )
    program.fresh_line()
    program.save()
    assert program.fresh_line().endswith(f" {fcntl.F_WRLCK}")
    program.resume(program.save(stop=True).manifest.info.snapshot_id)
    assert program.fresh_line().endswith(f" {fcntl.F_WRLCK}")


@pytest.mark.parametrize("in_user_namespace", [False, True])
def test_a_lock_on_a_mapped_file_is_still_held_after_a_resume(run, engine, in_user_namespace):
    """Linux drops it when CRIU closes the descriptor by which it maps the file."""
    code = LOCKS["posix"] + "; import mmap; file.truncate(99); area = mmap.mmap(file.fileno(), 0)"
    own = in_user_namespace or engine.user_namespace
    program = run(CODE.format(code=code), engine=replace(engine, user_namespace=own))
    program.fresh_line()
    path = os.readlink(f"/proc/{program.tree.kernel_pid}/cwd") + "/locked"
    for _ in range(2):
        program.resume(program.save(stop=True).manifest.info.snapshot_id)
        program.fresh_line()
        with open(path, "r+") as other:
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 0)
            with pytest.raises(BlockingIOError):
                fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 14)


def test_a_lock_that_cannot_be_taken_again_ends_the_resume_and_leaves_nothing(run, monkeypatch):
    code = LOCKS["posix"] + "; import mmap; file.truncate(99); area = mmap.mmap(file.fileno(), 0)"
    program = run(CODE.format(code=code))
    program.fresh_line()
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    lines = program.lines()
    with monkeypatch.context() as patched:
        patched.setattr(lock_images, "_FCNTL", 9999)  # there is no such call
        with pytest.raises(ThawFailed, match="could not be taken again") as failed:
            program.resume(snapshot)
    assert program.spec.cwd in failed.value.details
    assert program.lines() == lines
    program.resume(snapshot)
    program.fresh_line()


def test_a_lock_on_a_mapped_file_that_was_deleted_is_still_held_after_a_resume(run):
    program = run("""
        import fcntl, mmap, os, time
        file = open("locked", "w+")
        fcntl.lockf(file, fcntl.LOCK_EX, 10, 5)
        file.truncate(99)
        area = mmap.mmap(file.fileno(), 0)
        os.unlink("locked")
        while True:
            print("lock:" in open(f"/proc/self/fdinfo/{file.fileno()}").read(), flush=True)
            time.sleep(0.01)
    """)
    assert program.fresh_line() == "True"
    resumed = program.resume(program.save(stop=True).manifest.info.snapshot_id)
    assert program.fresh_line() == "True"
    assert resumed.warnings == []


def test_a_lock_that_is_held_for_a_moment_is_waited_for(run):
    program = run(CODE.format(code=LOCKS["flock"]))
    program.fresh_line()
    path = os.readlink(f"/proc/{program.tree.kernel_pid}/cwd") + "/locked"
    suspended = program.save(stop=True).manifest.info.snapshot_id
    with open(path) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        asked, look = threading.Event(), lock_images._holder

        def looked(*arguments):
            asked.set()
            return look(*arguments)

        with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(1) as beside:
            patched.setattr(lock_images, "_holder", looked)
            resumed = beside.submit(program.resume, suspended)
            assert asked.wait(PATIENCE)
            fcntl.flock(other, fcntl.LOCK_UN)
            resumed.result()
    program.fresh_line()


@pytest.mark.parametrize("kind", ["posix", "ofd"])
def test_locks_of_other_bytes_and_kinds_do_not_conflict(run, kind):
    code = "fcntl.lockf(file, fcntl.LOCK_EX, 10, 5)"
    if kind == "ofd":
        code = "fcntl.fcntl(file, 37, struct.pack('hhqqi', fcntl.F_WRLCK, 0, 5, 10, 0))"
    program = run(CODE.format(code=code))
    program.fresh_line()
    path = os.readlink(f"/proc/{program.tree.kernel_pid}/cwd") + "/locked"
    suspended = program.save(stop=True).manifest.info.snapshot_id
    with open(path, "r+") as other:
        fcntl.lockf(other, fcntl.LOCK_EX, 5, 0)
        fcntl.lockf(other, fcntl.LOCK_EX, 100, 15)
        fcntl.flock(other, fcntl.LOCK_EX)
        program.resume(suspended)
    program.fresh_line()


def test_shared_locks_do_not_conflict(run):
    program = run(
        CODE.format(code="fcntl.flock(file, fcntl.LOCK_SH); fcntl.lockf(file, fcntl.LOCK_SH)")
    )
    program.fresh_line()
    program.resume(program.save().manifest.info.snapshot_id)
    program.fresh_line()
