"""Files that a program had open and that are gone when it is resumed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_gpuckpt.errors import FilesChanged, HostIncompatible
from jupyter_gpuckpt.snapshot_records import Change
from jupyter_gpuckpt.snapshots.changes import changes
from tests.conftest import wait_for

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
    with pytest.raises(FilesChanged, match=r"data\.csv, which the kernel has open, is gone") as no:
        program.resume(snapshot)
    assert "--force" in no.value.hint
    assert not (directory / "both").exists()
    (directory / "data.csv").write_text("1,2")
    program.resume(snapshot)
    program.lines(more_than=len(program.lines()) + 3)


#: Ways to have a file open that is needed, and what becomes of it if an empty one is in its place.
NEEDED = {
    "read": "data = open('data', 'rb', buffering=0); data.read(3); use = lambda: data.read(1) == b''",
    "read and written": "written = open('data', 'ab'); data = open('data', 'rb', buffering=0); use = lambda: data.read(1) == b''",
    "mapped": "data = mmap.mmap(os.open('data', os.O_RDONLY), 0, prot=mmap.PROT_READ); use = lambda: data[0]",
}
USER = """
    import mmap, os, time
    open("data", "wb").write(b"data")
    {open}
    while True:
        print(os.path.exists("on") and use(), flush=True)
        time.sleep(0.01)
"""


@pytest.mark.parametrize("how", NEEDED)
def test_an_empty_file_takes_the_place_of_a_needed_one_only_if_a_user_says_so(run, how):
    program = run(USER.format(open=NEEDED[how]))
    program.lines(more_than=3)
    manifest = program.save(stop=True).manifest
    snapshot, data = manifest.info.snapshot_id, Path(program.spec.cwd, "data")
    data.unlink()
    found = changes(manifest, program.store)
    assert [(one.path, one.change) for one in found.files] == [(str(data), Change.MISSING)]
    assert not found.obstacles
    with pytest.raises(FilesChanged, match="is gone"):
        program.resume(snapshot)
    assert not data.exists()
    warnings = program.resume(snapshot, force=True).warnings
    assert f"The file {data} was gone; an empty one is in its place." in warnings
    assert os.path.getsize(data) == 0
    program.fresh_line()
    (data.parent / "on").touch()
    if how == "mapped":  # SIGBUS
        wait_for(lambda: Path(program.tree.exit_path).exists())
    else:
        wait_for(lambda: program.lines()[-1] == "True")


def test_no_user_can_do_without_a_folder(run):
    program = run(USER.format(open="os.mkdir('folder'); data = os.open('folder', os.O_RDONLY)"))
    program.lines(more_than=3)
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    Path(program.spec.cwd, "folder").rmdir()
    with pytest.raises(HostIncompatible, match=r"folder.*is gone") as caught:
        program.resume(snapshot, force=True)
    assert not isinstance(caught.value, FilesChanged)


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
