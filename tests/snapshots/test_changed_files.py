"""Files that a program has open or mapped and that change while it is suspended: nothing is falsified without a word."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from jupyter_gpuckpt.errors import FilesChanged, HostIncompatible, KernelNotCheckpointable
from jupyter_gpuckpt.host import machine_profile
from jupyter_gpuckpt.host.file_digests import FileDigests
from jupyter_gpuckpt.snapshots import arrivals
from jupyter_gpuckpt.snapshots.changes import changes
from jupyter_gpuckpt.wire.progress import Stage
from jupyter_gpuckpt.wire.snapshot_records import Change
from tests.conftest import wait_for
from tests.parameters import some_slow
from tests.silent_disk import silent_disk
from tests.snapshots.test_rehearsal import at

MB = 1 << 20

#: Maps one file as `np.load(..., mmap_mode='r')` does, reads another in pieces as pandas does, writes a log, and has more open. It
#: says its sum, its place in the file that it reads and the size of its log, and reads on when there is a file `on`.
READER = f"""
    import mmap, os, sqlite3, time
    with open("array", "wb") as file:
        file.write(b"\\1" * {3 * MB})
    with open("array", "rb") as file:
        array = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    with open("rows.csv", "w") as file:
        file.writelines(f"{{n:09}}\\n" for n in range(200_000))
    rows = open("rows.csv", "rb", buffering=0)
    rows.read(650_550)
    os.mkdir("folder")
    folder = os.open("folder", os.O_RDONLY)
    log = open("log", "a")
    while True:
        print("line", file=log, flush=True)
        if os.path.exists("on"):
            rows.read(10)
        print(sum(array[::4096]), rows.tell(), os.fstat(log.fileno()).st_size, flush=True)
        time.sleep(0.01)
"""


class Reader:
    """The program and its files."""

    def __init__(self, program) -> None:
        self.program = program
        self.folder = Path(program.spec.cwd)
        self.array, self.rows, self.log = (
            self.folder / name for name in ("array", "rows.csv", "log")
        )

    def suspend(self):
        """Suspend it; return the manifest."""
        saved = self.program.save(stop=True)
        assert saved.warnings == []
        return saved.manifest

    def resume(self, manifest, **options):
        """Resume it; return the warnings."""
        return self.program.resume(manifest.info.snapshot_id, **options).warnings

    def sums(self) -> list[int]:
        """Return what it says now."""
        return [int(word) for word in self.program.fresh_line().split()]


@pytest.fixture
def reader(run):
    program = run(READER)
    program.lines(more_than=3)
    return Reader(program)


def other(path: Path, content: bytes) -> None:
    """Put another file in the place of this one."""
    made = path.with_name("made")
    made.write_bytes(content)
    made.replace(path)


def test_a_mapped_file_that_is_shorter_is_named_and_put_back_or_taken_as_it_is(reader):
    manifest = reader.suspend()
    former = reader.array.rename(reader.folder / "former")
    reader.array.write_bytes(b"\1" * MB)
    assert changes(manifest, reader.program.store).files[0].change is Change.TOO_SHORT
    [obstacle] = arrivals.check(manifest).obstacles
    assert f"{reader.array} has only 1,048,576 bytes" in obstacle
    for _ in range(2):
        with pytest.raises(FilesChanged) as caught:
            reader.resume(manifest)
        assert str(reader.array) in caught.value.message
        assert "SIGBUS" in caught.value.message
        assert "Put them back" in caught.value.hint
        assert "--force" in caught.value.command
        assert "keep_files" in caught.value.hint
        assert f"The former {reader.array} is called former now." in caught.value.message
    former.replace(reader.array)
    os.truncate(reader.array, MB)
    with pytest.raises(FilesChanged) as caught:
        reader.resume(manifest)
    assert "The former" not in caught.value.message
    reader.array.write_bytes(b"\1" * (3 * MB))
    assert reader.resume(manifest) == []
    assert reader.sums()[0] == 3 * MB // 4096


def test_a_user_may_go_on_although_a_mapped_file_is_shorter(reader):
    manifest = reader.suspend()
    other(reader.array, b"\1" * (2 * MB + MB // 2))
    lines = len(reader.program.lines())
    [warning] = reader.resume(manifest, force=True)
    assert str(reader.array) in warning
    assert "SIGBUS" in warning
    tree = reader.program.tree
    wait_for(lambda: Path(tree.exit_path).exists())
    assert len(reader.program.lines()) == lines
    assert reader.program.store.manifest(manifest.info.snapshot_id) == manifest


def test_a_file_that_is_read_in_pieces_and_was_rotated_is_named(reader):
    """pandas would take the end of the new file for the end of its rows."""
    manifest = reader.suspend()
    former = reader.rows.rename(reader.folder / "rows.csv.1")
    reader.rows.write_bytes(b"000000000\n" * 50)
    with pytest.raises(
        FilesChanged, match=r"rows\.csv has only 500 bytes.*up to byte 650,550"
    ) as no:
        reader.resume(manifest)
    assert f"The former {reader.rows} is called rows.csv.1 now." in no.value.message
    former.replace(reader.rows)
    assert reader.resume(manifest) == []
    (reader.folder / "on").touch()
    assert reader.sums()[1] > 650_550


@pytest.mark.parametrize("name", ["array", "rows.csv"])
def test_a_file_of_the_same_length_with_other_content_is_named(reader, name, caplog):
    manifest = reader.suspend()
    path = reader.folder / name
    other(path, b"\2" * path.stat().st_size)
    [warning] = arrivals.check(manifest).warnings
    assert reader.resume(manifest) == [warning]
    assert f"{path}, which the kernel has open, has other content" in warning
    assert warning in caplog.text
    assert reader.sums()[0] == (3 * MB // 4096) * (2 if name == "array" else 1)


def test_one_byte_in_the_middle_is_enough(reader):
    manifest = reader.suspend()
    with reader.array.open("r+b") as file:
        file.seek(MB + MB // 2)
        file.write(b"\7")
    assert [str(reader.array) in text for text in reader.resume(manifest)] == [True]


def test_grown_touched_copied_and_moved_files_are_no_news(reader):
    """Device and inode are others after every move to another machine."""
    manifest = reader.suspend()
    with reader.log.open("a") as file:
        file.write("from elsewhere\n" * 1000)
    with reader.rows.open("a") as file:
        file.write("200000000\n")
    os.utime(reader.array, (1, 1))
    reader.array.chmod(0o600)
    assert reader.resume(manifest) == []
    assert reader.sums()[2] > 15_000
    manifest = reader.suspend()
    for path in (reader.array, reader.rows, reader.log):
        other(path, path.read_bytes())
    assert arrivals.check(manifest)[:2] == ([], [])
    assert reader.resume(manifest) == []
    manifest = reader.suspend()
    moved = replace(
        manifest,
        host=replace(manifest.host, boot_id="other"),
        open_files=[replace(file, device=1, inode=1) for file in manifest.open_files],
    )
    assert arrivals.check(moved)[:2] == ([], [])
    assert changes(moved, reader.program.store).files == []


def test_what_a_kernel_lacks_on_another_machine_is_known_before_a_fetch(reader):
    manifest = reader.suspend()
    reader.array.unlink()
    reader.log.unlink()
    [obstacle] = arrivals.check(manifest).obstacles
    assert obstacle == (
        f"The file {reader.array}, which the kernel has mapped into its memory, is gone."
    )


def test_a_replaced_folder_is_named_on_the_same_machine_only(reader):
    manifest = reader.suspend()
    folder = reader.folder / "folder"
    folder.rename(reader.folder / "former")
    folder.mkdir()
    moved = replace(manifest, host=replace(manifest.host, boot_id="other"))
    assert arrivals.check(moved).warnings == []
    assert reader.resume(manifest) == [
        f"The folder {folder}, which the kernel has open, was replaced by another one."
    ]


def test_a_file_that_becomes_shorter_during_the_suspend_is_no_loss(reader):
    with pytest.raises(KernelNotCheckpointable, match="array has only 5 bytes") as caught:
        reader.program.save(
            stop=True, progress=at(Stage.STORE, lambda: other(reader.array, b"short"))
        )
    assert "runs on" in caught.value.hint
    assert reader.sums()[0] == 3 * MB // 4096


def test_a_running_kernels_own_log_is_no_news_for_its_older_snapshot(reader):
    saved = reader.program.save()
    assert saved.warnings == []
    size = reader.sums()[2]
    wait_for(lambda: reader.sums()[2] > size)
    reader.suspend()
    assert reader.resume(saved.manifest) == []
    listed = changes(saved.manifest, reader.program.store).files
    assert [(Path(file.path).name, file.change) for file in listed] == [("log", Change.CHANGED)]


def test_a_file_that_travels_is_the_copy_wherever_the_kernel_comes_back(run):
    program = run(READER, keep_files=["array"])
    program.lines(more_than=3)
    reader = Reader(program)
    manifest = reader.suspend()
    assert str(reader.array) not in {file.path for file in manifest.open_files}
    reader.array.write_bytes(b"short")
    assert reader.resume(manifest) == []
    assert reader.sums()[0] == 3 * MB // 4096


#: Maps a file for writing as `np.memmap(..., mode='r+')` does.
WRITER = """
    import mmap, os, time
    with open("array", "wb") as file:
        file.write(bytes(100_000))
    with open("array", "r+b") as file:
        array = mmap.mmap(file.fileno(), 0)
    n = 0
    while True:
        n += 1
        array[50_000] = n % 256
        print(n, flush=True)
        time.sleep(0.01)
"""


def test_a_file_that_is_mapped_for_writing_is_not_made_anew(run):
    program = run(WRITER)
    program.lines(more_than=3)
    reader = Reader(program)
    manifest = reader.suspend()
    former = reader.array.rename(reader.folder / "former")
    with pytest.raises(HostIncompatible, match=r"array, which the kernel has mapped.*is gone"):
        reader.resume(manifest)
    assert not reader.array.exists()
    reader.array.write_bytes(b"short")
    with pytest.raises(FilesChanged, match="SIGBUS"):
        reader.resume(manifest)
    former.replace(reader.array)
    assert reader.resume(manifest) == []
    reader.program.fresh_line()


#: Uses a database in the mode {mode}, stops in the middle of a transaction if {begin} says so, and goes on when there is a file `on`.
DATABASE = """
    import os, sqlite3, time
    database = sqlite3.connect("data.db", isolation_level=None)
    database.execute("pragma journal_mode={mode}")
    database.execute("create table t (n)")
    database.execute("insert into t values (1)")
    database.execute("{begin}")
    while not os.path.exists("on"):
        print("waits", flush=True)
        time.sleep(0.01)
    database.execute("insert into t values (2)")
    if database.in_transaction:
        database.execute("commit")
    print(database.execute("select count(*) from t").fetchone(), flush=True)
    while True:
        print("done", flush=True)
        time.sleep(0.01)
"""
BEGIN = "begin immediate; insert into t values (3)"


def database_of(run, mode, begin=""):
    """Start the program; return it and its database."""
    code = DATABASE.format(mode=mode, begin=begin.partition(";")[0])
    if begin:
        code = code.replace(
            "    while not", f'    database.execute("{begin.partition("; ")[2]}")\n    while not', 1
        )
    program = run(code)
    program.lines(more_than=3)
    return Reader(program), program.spec.cwd + "/data.db"


def changed_elsewhere(database):
    """Change the database as another program does; its last connection removes a log and its index."""
    with closing(sqlite3.connect(database)) as elsewhere:
        elsewhere.execute("insert into t values (0)")
        elsewhere.commit()


@pytest.mark.parametrize("mode", some_slow(["wal", "delete"], {"wal"}))
def test_an_idle_connection_of_a_database_that_was_changed_goes_on(run, mode):
    reader, database = database_of(run, mode)
    manifest = reader.suspend()
    changed_elsewhere(database)
    assert not Path(f"{database}-shm").exists()
    assert any(f"{database}, which" in text for text in reader.resume(manifest))
    (reader.folder / "on").touch()
    wait_for(lambda: "(3,)" in reader.program.lines())
    with closing(sqlite3.connect(database)) as elsewhere:
        assert elsewhere.execute("pragma integrity_check").fetchone() == ("ok",)
        assert elsewhere.execute("select n from t order by n").fetchall() == [(0,), (1,), (2,)]


@pytest.mark.parametrize("mode", some_slow(["wal", "delete"], {"delete"}))
def test_a_transaction_does_not_go_on_with_a_database_that_was_changed(run, mode):
    reader, database = database_of(run, mode, BEGIN)
    manifest = reader.suspend()
    assert {Path(one.path).name for one in manifest.open_files if one.in_transaction} == {
        "data.db",
        f"data.db-{'wal' if mode == 'wal' else 'journal'}",
    }
    assert reader.resume(manifest) == []
    manifest = reader.suspend()
    assert any(one.in_transaction for one in manifest.open_files), "it has lost its locks"
    changed_elsewhere(database)
    with pytest.raises(FilesChanged, match=r"data\.db.* in the middle of a transaction"):
        reader.resume(manifest)
    assert Change.IN_TRANSACTION in {
        one.change for one in changes(manifest, reader.program.store).files
    }
    warnings = reader.resume(manifest, force=True)
    assert any("in the middle of a transaction" in text for text in warnings)
    reader.program.fresh_line()


@pytest.mark.slow
def test_a_disk_that_does_not_answer_any_more_does_not_prevent_a_resume(run, tmp_path):
    silent = tmp_path / "silent"
    with silent_disk(tmp_path / "share", silent) as (path, said):
        program = run(
            f"""
            import time
            data = open({str(path)!r}, "rb", buffering=0)
            while True:
                print(data.tell(), flush=True)
                time.sleep(0.01)
            """
        )
        program.lines(more_than=3)
        manifest = program.save(stop=True).manifest
        [file] = [one for one in manifest.open_files if one.path == str(path)]
        assert (file.length, len(file.digest)) == (100, 64)
        silent.touch()
        # On another machine the file would have to be read.
        elsewhere = replace(manifest, host=replace(manifest.host, boot_id="other"))
        [warning] = arrivals.check(elsewhere).warnings
        assert f"{path}, which the kernel has open, has changed" in warning
        assert "does not answer" in warning
        assert said.readline() == "asked\n"
        assert program.resume(manifest.info.snapshot_id).warnings == []
        program.fresh_line()


def test_the_outlines_are_those_of_the_data_alone(reader):
    manifest = reader.suspend()
    ours = {
        Path(file.path).name: file
        for file in manifest.open_files
        if file.path.startswith(str(reader.folder)) and not file.is_folder
    }
    assert set(ours) == {"array", "rows.csv", "log"}
    assert (ours["array"].mapped, ours["rows.csv"].read) == (3 * MB, 650_550)
    assert all(len(file.digest) == 64 for file in ours.values())
    assert ours["log"].is_written
    programs = {file.path for file in manifest.mapped}
    assert not programs & {file.path for file in manifest.open_files}
    assert manifest.host.boot_id == machine_profile.host().boot_id != ""
    assert FileDigests().outlines.read({}) == {}


#: Has open what is no data file, or has no content that could change while it is suspended.
NO_DATA = """
    import os, socket, tempfile, time
    os.mkfifo("fifo")
    opened = [os.open("fifo", os.O_RDWR)]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("socket")
    try:
        os.mknod("null", 0o020666, os.makedev(1, 3))
    except PermissionError:  # an ordinary user
        os.symlink("/dev/null", "null")
    with open("data", "w") as data:
        data.write("data")
    opened += [os.open(name, os.O_PATH) for name in ("fifo", "null", "data")]
    opened += [os.open(name, os.O_RDONLY) for name in ("null", "/dev/zero", "/proc/uptime", "/sys/kernel/mm/ksm/run")]
    opened += [os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), os.memfd_create("memory")]
    with open("deleted", "w") as deleted:
        deleted.write("deleted")
    deleted = open("deleted")
    os.remove("deleted")
    temporary = tempfile.TemporaryFile(dir="/dev/shm")
    temporary.write(b"temporary")
    while True:
        os.write(opened[-2], b"line")
        print("runs", flush=True)
        time.sleep(0.01)
"""


def test_only_regular_files_that_can_be_read_are_compared(run):
    program = run(NO_DATA)
    program.lines(more_than=3)
    reader = Reader(program)
    manifest = reader.suspend()
    names = {Path(file.path).name for file in manifest.open_files if not file.is_folder}
    (reader.folder / "data").write_text("other")
    os.utime(reader.folder / "fifo")
    assert reader.resume(manifest) == []
    program.fresh_line()
    assert names & set(os.listdir(reader.folder)) == {"log"}
