"""Files that a program had open and that are gone when it is resumed."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from jupyter_gpuckpt.errors import FilesChanged, HostIncompatible, ThawFailed
from jupyter_gpuckpt.snapshots.changes import changes
from jupyter_gpuckpt.wire.snapshot_records import Change
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


def test_ipythons_history_and_the_kernels_own_log_are_made_anew_and_not_said(run, tmp_path):
    directory = tmp_path / "program-0"
    program = run(HOLDER.format(read="history = open('history.sqlite', 'a')"))
    program.lines(more_than=3)
    manifest = program.save(stop=True).manifest
    (directory / "history.sqlite").unlink()
    Path(manifest.launch.log_path).unlink()
    assert program.resume(manifest.info.snapshot_id).warnings == []
    assert (directory / "history.sqlite").exists()
    assert Path(manifest.launch.log_path).exists()


def test_one_that_was_read_is_named_and_put_back_it_is_no_obstacle(run, tmp_path):
    directory = tmp_path / "program-0"
    program = run(HOLDER.format(read="data = open('data.csv', 'a') and open('data.csv')"))
    program.lines(more_than=3)
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    (directory / "data.csv").unlink()
    (directory / "both").unlink()
    with pytest.raises(FilesChanged, match=r"data\.csv, which the kernel has open, is gone") as no:
        program.resume(snapshot)
    assert "--force" in no.value.command
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


def make_folder(path: Path) -> None:
    path.mkdir()


def make_link_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere/at/all")


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


def make_device(path: Path) -> None:
    path.symlink_to("/dev/null")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "is a named pipe"),
        (make_folder, "is a folder"),
        (make_link_to_nothing, "is a link that leads nowhere"),
        (make_loop, "is a link that leads nowhere"),
        (make_device, "is a device"),
    ],
)
def test_another_kind_of_file_is_named_at_once_and_put_back_it_is_no_obstacle(
    run, tmp_path, make, words
):
    directory = tmp_path / "program-0"
    program = run(HOLDER.format(read=""))
    program.lines(more_than=3)
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    former = (directory / "log").rename(directory / "former")
    make(directory / "log")
    began = time.monotonic()
    for force in (False, True):
        with pytest.raises(HostIncompatible, match=rf"{directory}/log, .*{words} now"):
            program.resume(snapshot, force=force)
    assert time.monotonic() - began < 30
    if make is make_folder:
        (directory / "log").rmdir()
    former.replace(directory / "log")
    assert program.resume(snapshot).warnings == []
    program.lines(more_than=len(program.lines()) + 3)


def test_a_file_that_cannot_be_opened_any_more_is_not_said_to_be_gone(run, tmp_path):
    log = tmp_path / "program-0" / "log"
    program = run(HOLDER.format(read=""))
    program.lines(more_than=3)
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    former = log.rename(log.with_name("former"))
    shutil.copy2(shutil.which("sleep"), log)
    with subprocess.Popen([log, "300"]) as busy:  # Linux opens no running program for writing
        with pytest.raises(
            ThawFailed, match=f"{log}, .*cannot be opened: Text file busy"
        ) as caught:
            program.resume(snapshot)
        assert "Put it back" in caught.value.hint
        busy.kill()
    former.replace(log)
    program.resume(snapshot)
    program.lines(more_than=len(program.lines()) + 3)


def test_a_file_in_the_place_of_a_folder_is_named(run, tmp_path):
    below = tmp_path / "program-0" / "below"
    program = run(HOLDER.format(read=""))
    program.lines(more_than=3)
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    shutil.rmtree(below)
    below.touch()
    with pytest.raises(HostIncompatible, match=f"a folder of {below}/written, .*is a file now"):
        program.resume(snapshot)
    below.unlink()
    program.resume(snapshot)
    program.lines(more_than=len(program.lines()) + 3)


LISTENER = """
    import socket, time
    server = socket.socket(socket.AF_UNIX)
    server.bind("socket")
    server.listen()
    count = 0
    while True:
        count += 1
        print(count, flush=True)
        time.sleep(0.01)
"""


def test_a_file_in_the_place_of_a_unix_socket_is_no_network_port(run, tmp_path):
    path = tmp_path / "program-0" / "socket"
    program = run(LISTENER)
    program.lines(more_than=3)
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    path.unlink(missing_ok=True)
    path.write_text("precious")
    with pytest.raises(ThawFailed, match="unix socket on which the kernel listens"):
        program.resume(snapshot)
    assert path.read_text() == "precious"
    path.unlink()
    program.resume(snapshot)
    program.lines(more_than=len(program.lines()) + 3)
