"""File locks of a kernel that another program holds when it is to come back: the resume says so at once, and works afterwards."""

from __future__ import annotations

import pytest

from jupyter_gpuckpt.errors import ThawFailed

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


def test_shared_locks_do_not_conflict(run):
    program = run(
        CODE.format(code="fcntl.flock(file, fcntl.LOCK_SH); fcntl.lockf(file, fcntl.LOCK_SH)")
    )
    program.fresh_line()
    program.resume(program.save().manifest.info.snapshot_id)
    program.fresh_line()
