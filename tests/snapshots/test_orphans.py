"""A daemonised child, whose own parent has ended, is part of the kernel before and after a resume."""

import pytest

from jupyter_gpuckpt.engine.tree import launch
from tests.parameters import some_slow

#: Its session is the kernel's, or one whose leader has ended as well.
ORPHAN = """
    import os, time
    if not os.fork():
        {session}
        if os.fork():
            os._exit(0)
        while True:
            print("orphan", os.getppid(), flush=True)
            time.sleep(0.01)
    os.wait()
    while True:
        time.sleep(1)
"""


@pytest.mark.parametrize("session", some_slow(["pass", "os.setsid()"], {"os.setsid()"}))
def test_an_orphan_goes_on_and_is_in_the_next_snapshot_too(run, session):
    program = run(ORPHAN.format(session=session))
    program.lines(more_than=10)
    said = {f"orphan {program.tree.keeper_nspid}"}
    for _ in range(2):
        saved = program.save(stop=True)
        assert len(saved.manifest.processes) == 3
        before = len(program.lines())
        program.resume(saved.manifest.info.snapshot_id)
        assert set(program.lines(more_than=before + 1)[before:]) == said
    assert len(launch.pids(program.tree)) == 3
