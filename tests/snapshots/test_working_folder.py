"""The working folder in snapshots of real programs: what is stored of it, and what changed in the freeze."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from jupyter_gpuckpt.images.unpack import read_stream
from jupyter_gpuckpt.snapshots.save import save
from jupyter_gpuckpt.snapshots.working_folder import folder_walks
from jupyter_gpuckpt.snapshots.working_folder.folder_saves import FolderSave
from jupyter_gpuckpt.snapshots.working_folder.stored_folders import stored_folder
from jupyter_gpuckpt.wire.folder_records import FolderRules
from jupyter_gpuckpt.wire.manifest_records import SaveOptions
from jupyter_gpuckpt.wire.progress import Progress

RULES = FolderRules(is_saved=True)
#: Says a number, and writes it to a file, to a mapped array and to a database, each in its own way, without a pause.
WRITER = """
    import mmap, os, sqlite3, sys, time
    import numpy as np
    array = np.memmap("array", np.int64, "w+", shape=(1 << 16,))
    database = sqlite3.connect("data.sqlite", isolation_level=None)
    database.execute("pragma journal_mode=wal")
    database.execute("create table if not exists numbers (n integer)")
    database.execute("insert into numbers values (0)")
    n = 0
    while True:
        n += 1
        array[n % len(array)] = n
        array[0] = n
        with open("text", "w") as file:
            file.write(f"{n:09d}")
        database.execute("update numbers set n = ?", (n,))
        print(n, flush=True)
"""
IDLE = """
    import time
    while True:
        print("idle", flush=True)
        time.sleep(0.01)
"""


def taken(program, *, stop=False, rules=RULES):
    """Save a program with its folder; return the snapshot."""
    spec = replace(program.spec, working_folder=rules)
    options = SaveOptions(stop=stop, name="program")
    return save(program.tree, spec, program.store, program.engine, options, progress=Progress())


def files_of(saved, store):
    """Return the content of each file in a snapshot."""
    found = stored_folder(saved.manifest, store)
    return {
        path: read_stream(one.stream, store)
        for path, one in found.files.items()
        if one.entry.kind == "file"
    }


@pytest.mark.parametrize("stop", [False, True])
def test_files_are_those_of_the_moment_of_the_memory(run, store, tmp_path, stop):
    """A program writes all the time: memory and files must be of one moment, each time anew."""
    program = run(WRITER)
    program.lines(more_than=50)
    for _ in range(1 if stop else 3):
        saved = taken(program, stop=stop)
        found = files_of(saved, store)
        assert not saved.warnings, saved.warnings
        target = tmp_path / "copy"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for name, content in found.items():
            (target / name).write_bytes(content)
        said = int(found["program.log"].split()[-1])
        mapped = int.from_bytes(found["array"][:8], "little")
        written = int(found["text"] or said)
        # The database is read as another process would after a crash: its log is part of the folder.
        with sqlite3.connect(target / "data.sqlite") as database:
            (stored,) = database.execute("select n from numbers").fetchone()
        assert mapped in {said, said + 1}
        assert written in {said, said + 1}
        assert stored in {said, said + 1}
        if not stop:
            program.fresh_line()


def test_what_is_unchanged_is_not_read_again(run, store, monkeypatch):
    program = run(IDLE)
    folder = Path(program.spec.cwd)
    for number in range(50):
        (folder / f"file-{number}").write_bytes(os.urandom(10_000))
    (folder / "deep").mkdir()
    (folder / "deep" / "link").symlink_to("../file-1")
    (folder / "empty").touch()
    program.fresh_line()
    first = taken(program)
    read = []
    of_file = FolderSave._pack

    def noting(saving, sources, progress):
        read.extend(one.name for one in sources)
        return of_file(saving, sources, progress)

    # Times of files are older than 20 ms now: each line takes 10 ms.
    program.fresh_line(), program.fresh_line(), program.fresh_line()
    taken(program)
    monkeypatch.setattr(FolderSave, "_pack", noting)
    (folder / "file-7").write_bytes(b"changed")
    (folder / "file-8").unlink()
    second = taken(program)
    assert {name for name in read if "log" not in name} == {"folder/file-7", "folder-table"}
    before, after = files_of(first, store), files_of(second, store)
    assert after["file-7"] == b"changed"
    assert before.keys() - after.keys() == {"file-8"}
    assert stored_folder(second.manifest, store).files["deep/link"].entry.target == "../file-1"
    store.delete(first.manifest.info.snapshot_id)
    store.collect()
    assert files_of(second, store) == after


def test_a_file_that_is_mapped_is_always_read(run, store):
    """Stores to a page that is dirty already leave the file's times as they are."""
    program = run(
        """
        import mmap, os, time
        with open("mapped", "w+b") as file:
            file.truncate(1 << 16)
            memory = mmap.mmap(file.fileno(), 1 << 16)
        n = 0
        while True:
            n += 1
            memory[8:16] = n.to_bytes(8, "little")
            print(n, flush=True)
            time.sleep(0.01)
        """
    )
    program.lines(more_than=10)
    status = (Path(program.spec.cwd) / "mapped").stat()
    numbers = []
    for _ in range(3):
        found = files_of(taken(program), store)
        said = int(found["program.log"].split()[-1])
        numbers.append(int.from_bytes(found["mapped"][8:16], "little"))
        assert numbers[-1] in {said, said + 1}
        program.fresh_line()
    assert sorted(set(numbers)) == numbers
    assert (Path(program.spec.cwd) / "mapped").stat().st_mtime_ns == status.st_mtime_ns


def test_what_is_left_out(run, store):
    program = run(IDLE)
    folder = Path(program.spec.cwd)
    for path in (
        "kept.py",
        "work.ipynb",
        ".ipynb_checkpoints/work.ipynb",
        ".git/config",
        "build/big.o",
        "deep/notes.tmp",
        "deep/kept.tmp",
        ".gpuckpt-files-0/new/1",
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    (folder / ".gitignore").write_text("build/\n*.tmp\n*.log\n")
    (folder / "deep" / ".gitignore").write_text("!kept.tmp\n")
    os.mkfifo(folder / "pipe")
    if not os.geteuid():
        (folder / "other").write_text("another user's")
        os.chown(folder / "other", 1, 1)
    saved = taken(program)
    assert set(files_of(saved, store)) == {
        ".gitignore",
        "deep/.gitignore",
        "deep/kept.tmp",
        "kept.py",
    }
    left_out = set(stored_folder(saved.manifest, store).left_out)
    assert {"build", "deep/notes.tmp", "work.ipynb", ".git", "pipe"} <= left_out
    with_git = taken(program, rules=replace(RULES, with_git=True, ignored=["kept.*"]))
    assert ".git/config" in files_of(with_git, store)
    assert "kept.py" not in files_of(with_git, store)


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (replace(RULES, max_bytes=1000), "more than"),
        (replace(RULES, max_files=2), "more than"),
    ],
)
def test_a_folder_over_its_limits_is_not_saved_and_told(run, rules, why):
    program = run(IDLE)
    for number in range(3):
        (Path(program.spec.cwd) / f"file-{number}").write_bytes(bytes(1000))
    saved = taken(program, rules=rules)
    assert saved.manifest.folder is None
    assert not saved.manifest.info.has_files
    assert why in " ".join(saved.warnings)
    program.fresh_line()


def test_a_home_directory_is_not_saved(run, monkeypatch):
    program = run(IDLE)
    monkeypatch.setenv("HOME", str(Path(program.spec.cwd) / "home"))
    saved = taken(program)
    assert saved.manifest.folder is None
    assert "home directory" in " ".join(saved.warnings)


def test_a_file_that_another_program_writes_is_left_out_and_told(run, store, monkeypatch):
    program = run(IDLE)
    folder = Path(program.spec.cwd)
    (folder / "steady").write_text("steady")
    copied = folder_walks.walk
    looks = []

    def disturbed(beneath, rules, excluded=()):
        found = copied(beneath, rules, excluded)
        looks.append(found)
        # After the walk, before the files are read.
        (folder / "written").write_text(f"{len(looks)}" * len(looks))
        return found

    (folder / "written").write_text("")
    monkeypatch.setattr("jupyter_gpuckpt.snapshots.working_folder.folder_saves.walk", disturbed)
    saved = taken(program)
    assert "written" not in files_of(saved, store)
    assert "steady" in files_of(saved, store)
    assert "Another program wrote" in " ".join(saved.warnings)


def test_a_folder_that_disappears_during_a_save_fails_nothing(run):
    program = run(IDLE)
    folder = Path(program.spec.cwd) / "below"
    folder.mkdir()
    stop = threading.Event()

    def churn():
        number = 0
        while not stop.is_set():
            number += 1
            with suppress(OSError):
                (folder / f"{number % 7}").write_bytes(os.urandom(number % 5000))
                (folder / f"{(number + 3) % 7}").unlink()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(3):
            assert taken(program).manifest.folder is not None
    finally:
        stop.set()
        thread.join()
    program.fresh_line()
