"""Files that a program had open and that are gone when it is resumed."""

from __future__ import annotations

import pytest

from jupyter_gpuckpt.errors import HostIncompatible

HOLDER = """
    import os, time
    os.makedirs("below", exist_ok=True)
    written = open("below/written", "a")
    both = open("both", "w+b")
    log = open("log", "w")
    {read}
    gone = open("gone", "w+b")
    gone.write(b"kept")
    gone.flush()
    os.unlink("gone")
    count = 0
    while True:
        count += 1
        gone.seek(0)
        print(count, gone.read(), file=written, flush=True)
        print(count, file=log, flush=True)
        print(count, flush=True)
        time.sleep(0.01)
"""


def test_those_that_were_written_are_made_anew_and_said(run, tmp_path):
    directory = tmp_path / "program-0"
    program = run(HOLDER.format(read=""))
    program.lines(more_than=3)
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    for name in ("below/written", "both", "log"):
        (directory / name).unlink()
    (directory / "below").rmdir()
    resumed = program.resume(snapshot)
    program.lines(more_than=len(program.lines()) + 3)
    assert b"b'kept'" in (directory / "below" / "written").read_bytes()
    assert (directory / "both").stat().st_size == 0
    assert b"\0" not in (directory / "log").read_bytes(), "it goes on at the old offset"
    assert sorted(resumed.warnings) == [
        f"The file {directory / name} was gone; an empty one is in its place."
        for name in ("below/written", "both", "log")
    ]


def test_one_that_was_read_is_named_and_put_back_it_is_no_obstacle(run, tmp_path):
    directory = tmp_path / "program-0"
    program = run(HOLDER.format(read="data = open('data.csv', 'a') and open('data.csv')"))
    program.lines(more_than=3)
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    (directory / "data.csv").unlink()
    (directory / "both").unlink()
    with pytest.raises(HostIncompatible, match=r"data\.csv") as caught:
        program.resume(snapshot)
    assert "Put the missing files back" in caught.value.hint
    assert not (directory / "both").exists()
    (directory / "data.csv").write_text("1,2")
    program.resume(snapshot)
    program.lines(more_than=len(program.lines()) + 3)


def test_a_thread_s_file_in_proc_is_open_after_a_resume(run):
    """CRIU opens files before it makes the threads that they belong to."""
    program = run("""
        import threading, time
        thread = threading.Thread(target=threading.Event().wait, daemon=True)
        thread.start()
        file = open(f"/proc/self/task/{thread.native_id}/stat")
        while True:
            file.seek(0)
            print(file.read().split()[1], flush=True)
            time.sleep(0.01)
    """)
    assert program.fresh_line() == "(python)"
    resumed = program.resume(program.save(stop=True).manifest.info.snapshot_id)
    assert program.fresh_line() == "(python)"
    assert resumed.warnings == []
