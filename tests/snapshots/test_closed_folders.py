"""Files in folders that an ordinary user has closed since: they are there, although nobody may look."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_gpuckpt.engine.criu import missing_files
from jupyter_gpuckpt.errors import KernelNotCheckpointable, ThawFailed
from tests.parameters import some_slow
from tests.snapshots.test_failing_saves import assert_runs_on

pytestmark = pytest.mark.skipif(os.geteuid() == 0, reason="root may look into every folder")

PROGRAM = """
    import os, time
    os.mkdir("closed")
    folder = os.path.abspath("closed")
    {begin}
    os.chmod(folder, 0)
    n = 0
    while True:
        n += 1
        {go_on}
        print(n, flush=True)
        time.sleep(0.01)
"""
READ = "open('closed/file', 'w').close(); file = open('closed/file')"
LINKED = (
    "file = open('closed/file', 'w'); os.link('closed/file', 'second'); os.unlink('closed/file')"
)


def closed_folder(program) -> Path:
    return program.log.parent / "closed"


@pytest.mark.parametrize(
    ("begin", "go_on"),
    [
        ("file = open('closed/file', 'w')", "print(n, file=file, flush=True)"),
        (READ, "assert file.read() == ''"),
        (f"{READ}; os.chmod('closed/file', 0)", "assert file.read() == ''"),
        ("os.makedirs('closed/a/b'); os.chdir('closed/a/b')", "assert os.listdir() == []"),
    ],
    ids=["written", "read", "closed itself", "working directory"],
)
def test_what_lies_in_them_is_found_at_a_resume(run, begin: str, go_on: str) -> None:
    program = run(PROGRAM.format(begin=begin, go_on=go_on))
    program.lines(more_than=2)
    for _ in range(2):
        resumed = program.resume(program.save(stop=True).manifest.info.snapshot_id)
        assert resumed.warnings == []
        program.fresh_line()
    assert closed_folder(program).stat().st_mode & 0o777 == 0
    closed_folder(program).chmod(0o700)


@pytest.mark.parametrize("stop", some_slow([False, True], {True}), ids=["save", "suspend"])
def test_a_file_that_was_deleted_there_and_has_another_name_is_refused(run, *, stop: bool) -> None:
    program = run(PROGRAM.format(begin=LINKED, go_on="print(n, file=file, flush=True)"))
    program.lines(more_than=2)
    with pytest.raises(KernelNotCheckpointable, match=r"closed/file") as caught:
        program.save(stop=stop)
    assert "right to write" in caught.value.hint
    assert_runs_on(program)
    closed_folder(program).chmod(0o700)
    assert list(closed_folder(program).iterdir()) == []
    program.save()


def test_a_rehearsal_knows_what_is_there_and_what_is_not(run) -> None:
    program = run(PROGRAM.format(begin=READ, go_on="pass"))
    program.lines(more_than=2)
    there = str(closed_folder(program) / "file")
    assert missing_files.is_reached(program.tree, there)
    assert not missing_files.is_reached(program.tree, there + "-gone")
    closed_folder(program).chmod(0o700)


def test_a_folder_that_is_closed_while_the_kernel_sleeps_is_named(run) -> None:
    program = run(PROGRAM.format(begin=LINKED, go_on="pass"))
    program.lines(more_than=2)
    closed_folder(program).chmod(0o700)
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    closed_folder(program).chmod(0)
    with pytest.raises(ThawFailed, match="folder of a file that the kernel needs") as caught:
        program.resume(snapshot)
    assert "right to write" in caught.value.hint
    closed_folder(program).chmod(0o700)
    program.resume(snapshot)
    program.fresh_line()
