"""Terminals (ptys) of a kernel: their numbers are its own, so that no other program prevents a resume."""

from __future__ import annotations

import os

import pytest

from jupyter_gpuckpt.errors import KernelNotCheckpointable
from jupyter_gpuckpt.host import processes

PTYS = """
    import os, subprocess, sys, time
    pairs = [os.openpty() for _ in range({opened})]
    for pair in pairs[:{closed}]:
        for end in pair:
            os.close(end)
    main, follower = pairs[-1]
    cat = subprocess.Popen(["cat"], stdin=follower, stdout=follower)
    n = 0
    while True:
        n += 1
        os.write(main, b"%d\\n" % n)
        while os.read(main, 1000).count(b"\\n") < 1:
            pass
        print(n, os.ttyname(follower), cat.poll(), flush=True)
        time.sleep(0.01)
"""


def test_terminals_come_back_where_others_have_their_numbers(run):
    program = run(PTYS.format(opened=40, closed=0))
    before = program.fresh_line().split()[1:]
    suspended = program.save(stop=True).manifest.info.snapshot_id
    others = [os.openpty() for _ in range(40)]
    try:
        program.resume(suspended)
        assert program.fresh_line().split()[1:] == before
    finally:
        for end in (end for pair in others for end in pair):
            os.close(end)


def test_a_snapshot_with_a_terminal_is_resumed_beside_the_kernel(run):
    program = run(PTYS.format(opened=1, closed=0))
    program.fresh_line()
    first, snapshot = program.tree, program.save().manifest.info.snapshot_id
    program.resume(snapshot)
    program.fresh_line()
    assert processes.alive(first.kernel_pid)
    assert processes.alive(program.tree.kernel_pid)


def test_terminals_that_criu_cannot_restore_are_refused(run):
    program = run(PTYS.format(opened=33, closed=32))
    program.fresh_line()
    with pytest.raises(KernelNotCheckpointable, match="number 32 but none with number 0"):
        program.save(stop=True)
    program.fresh_line()


def test_as_many_numbers_as_criu_tries_may_be_free(run):
    program = run(PTYS.format(opened=32, closed=31))
    before = program.fresh_line().split()[1:]
    program.resume(program.save(stop=True).manifest.info.snapshot_id)
    assert program.fresh_line().split()[1:] == before
