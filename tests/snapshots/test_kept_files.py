"""Files that travel with a snapshot, resumed where they are missing or others."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from jupyter_gpuckpt.engine import kept_file_copies
from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.errors import HostIncompatible, ThawFailed
from jupyter_gpuckpt.remote.buckets import open_bucket
from jupyter_gpuckpt.snapshots import arrivals
from jupyter_gpuckpt.snapshots.changes import changes
from jupyter_gpuckpt.snapshots.resume import resume
from jupyter_gpuckpt.wire.progress import Progress, Stage
from jupyter_gpuckpt.wire.remote_records import Remote
from tests.conftest import left_in, wait_for
from tests.parameters import some_slow
from tests.remote.stores import Machine
from tests.snapshots.test_rehearsal import at
from tests.snapshots.test_replaced_programs import compiled

#: Says in which namespace it runs and what is in its files. It opens and maps more by their paths when there is a file `again`.
READER = """
    import ctypes, mmap, os, time
    os.mkdir("data")
    for name in "open", "mapped", "closed":
        with open(f"data/{{name}}", "w") as file:
            file.write(f"{{name}} then")
    open("data/empty", "w").close()
    library = ctypes.CDLL({library!r})
    held, empty = open("data/open"), open("data/empty")
    with open("data/mapped") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    open("data/closed").read()
    written = open("data/written", "w+")
    later = None
    while True:
        held.seek(0)
        if later is None and os.path.exists("again"):
            later = open("data/open", open("again").read())
        if later:
            later.seek(0)
        seen = held.read(), mapped[:].decode(), empty.read(), library.constant(2), later and later.read()
        print(os.readlink("/proc/self/ns/pid"), *seen, sep="|", flush=True)
        time.sleep(0.01)
"""
THEN = ["open then", "mapped then", "", "3"]


@pytest.fixture(
    # An ordinary user, who runs these in every run, has a user namespace as it is.
    params=some_slow([False, True, None], {False, None}),
    ids=["as it is", "in a user namespace", "plain"],
)
def anybody(request, engine):
    """Return the engine in three variants: with rights, as an ordinary user's, and with memory in CRIU's images."""
    own = bool(request.param) or engine.user_namespace
    return replace(engine, user_namespace=own, plain=request.param is None)


@pytest.fixture
def reader(run, tmp_path, engine, store):
    """Start a reader whose files travel; `data` is the folder that has them."""

    def start(engine=engine, patterns=("data/*", f"{tmp_path}/pack*.so"), store=store):
        library = compiled(tmp_path / "package" / "library.so")
        code = READER.format(library=str(library))
        program = run(code, engine=engine, store=store, keep_files=patterns)
        program.data, program.library = Path(program.spec.cwd) / "data", library
        assert seen(program) == [*THEN, "None"]
        return program

    return start


def seen(program):
    """Return the program's current report of its files."""
    return program.fresh_line().split("|")[1:]


def copies(engine):
    """Return the files of which there are copies, by their names."""
    return sorted(path.name for path in engine.kept_dir.rglob("*") if path.is_file())


def elsewhere(program, tmp_path):
    """Go on as on another machine: the data directory is another one."""
    number = len(list(tmp_path.glob("machine-*")))
    place = tmp_path / f"machine-{number}"
    place.mkdir()
    program.engine = replace(program.engine, spill_dir=place / "spill")


def other_files(program):
    """Give the machine other files."""
    (program.data / "open").unlink()
    (program.data / "mapped").write_text("mapped now")
    (program.data / "empty").write_text("no longer")
    program.library.unlink()
    compiled(program.library, addend=1)


def files_below(*folders):
    """Return what lies in folders, with content, modes and times."""
    return {
        path: (path.stat().st_mode, path.stat().st_mtime_ns, path.is_file() and path.read_bytes())
        for folder in folders
        for path in folder.rglob("*")
    }


def test_a_kernel_has_its_files_wherever_it_comes_back_and_the_machine_keeps_its_own(
    reader, anybody, tmp_path
):
    program = reader(anybody)
    saved = program.save(stop=True)
    kept = saved.manifest.kept
    assert {Path(file.path).name for file in kept} == {"library.so", "empty", "mapped", "open"}
    other_files(program)
    now = files_below(program.data, program.library.parent)
    assert arrivals.check(saved.manifest).obstacles == []
    listed = changes(saved.manifest, program.store)
    assert [change.path for change in listed.files] == []
    assert listed.obstacles == []
    for _ in range(2):
        elsewhere(program, tmp_path)
        assert program.resume(saved.manifest.info.snapshot_id).warnings == []
        assert seen(program) == [*THEN, "None"]
        assert files_below(program.data, program.library.parent) == now
        # What takes a mounted file from a kernel.
        other = program.data / "other"
        other.write_text("mapped later")
        other.replace(program.data / "mapped")
        shutil.rmtree(program.library.parent)
        assert program.save().warnings == []
        saved = program.save(stop=True)
        assert saved.warnings == []
        assert saved.manifest.kept == kept
        compiled(program.library, addend=1)
        now = files_below(program.data, program.library.parent)


def test_they_go_by_a_remote(reader, tmp_path):
    bucket = open_bucket(Remote("share", f"file://{tmp_path}/share"))
    with (
        closing(Machine(bucket, tmp_path / "here")) as here,
        closing(Machine(bucket, tmp_path / "there")) as there,
    ):
        program = reader(store=here.store)
        snapshot_id = program.save(stop=True).manifest.info.snapshot_id
        here.upload(snapshot_id, pack_bytes=8 << 20)
        there.fetch(snapshot_id)
        other_files(program)
        elsewhere(program, tmp_path)
        program.store = there.store
        program.resume(snapshot_id)
        assert seen(program) == [*THEN, "None"]


def test_branches_share_copies_which_go_when_no_kernel_has_them(reader, anybody, tmp_path):
    program = reader(anybody)
    manifest = program.save(stop=True).manifest
    other_files(program)
    program.resume(manifest.info.snapshot_id)
    branch = resume(
        manifest, program.store, program.engine, exit_path=tmp_path / "exit", progress=Progress()
    ).tree
    try:
        both = {
            os.readlink(f"/proc/{pid}/ns/pid")
            for pid in (program.tree.kernel_pid, branch.kernel_pid)
        }
        said: dict[str, str] = {}

        def both_speak() -> bool:
            said.update(line.split("|", 1) for line in program.lines()[-50:])
            return both <= said.keys()

        wait_for(both_speak)
        assert {said[one] for one in both} == {"|".join([*THEN, "None"])}
        kept_file_copies.collect(program.engine.kept_dir)
        assert copies(program.engine) == ["empty", "library.so", "mapped", "open"]
        launch.kill(program.tree)
        kept_file_copies.collect(program.engine.kept_dir)
        assert copies(program.engine) == ["empty", "library.so", "mapped", "open"]
        assert seen(program) == [*THEN, "None"]
    finally:
        launch.kill(branch)
    kept_file_copies.collect(program.engine.kept_dir)
    assert left_in(program.engine.kept_dir) == set()


@pytest.mark.parametrize("mode", some_slow(["r", "r+"], {"r+"}))
def test_what_the_kernel_opens_by_the_same_path_stays_another_file(reader, tmp_path, mode):
    """What it writes to does not travel."""
    program = reader()
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    (program.data / "open").write_text("open now")
    (tmp_path / "again").write_text(mode)
    (tmp_path / "again").rename(program.data.parent / "again")
    for is_here in (True, True, False, False):
        if not is_here:
            if mode == "r":
                (program.data / "open").unlink(missing_ok=True)
            shutil.rmtree(program.engine.kept_dir)
            elsewhere(program, tmp_path)
        program.resume(snapshot)
        assert seen(program) == [*THEN, "open now"]
        snapshot = program.save(stop=True).manifest.info.snapshot_id


def test_only_what_differs_is_copied_and_a_damaged_copy_is_made_again(reader):
    program = reader()
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    program.resume(snapshot)
    assert copies(program.engine) == []
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    (program.data / "open").chmod(0o700)
    program.resume(snapshot)
    assert copies(program.engine) == ["open"]
    assert seen(program) == [*THEN, "None"]
    (copy,) = program.engine.kept_dir.rglob("open")
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    copy.write_text("open ....")
    program.resume(snapshot)
    assert seen(program) == [*THEN, "None"]


def test_a_file_that_is_written_to_or_changes_meanwhile_does_not_travel(reader):
    program = reader(patterns=["/*"])
    change = at(Stage.STORE, lambda: (program.data / "open").write_text("open late"))
    saved = program.save(progress=change)
    paths = {file.path for file in saved.manifest.kept}
    [warning] = saved.warnings
    assert "data/open was written while it was read" in warning
    assert {str(program.data / "mapped"), str(program.library)} <= paths
    assert str(Path(sys.executable).resolve()) in paths
    no_files = {"open", "written", "closed", program.log.name}
    assert not no_files & {Path(path).name for path in paths}
    assert not any(path.startswith(("/dev/", "/proc/")) for path in paths)
    assert saved.manifest.info.sizes.raw_bytes > program.library.stat().st_size
    assert seen(program) == ["open late", *THEN[1:], "None"]


def test_a_resume_that_fails_leaves_nothing_and_can_be_repeated(reader, tmp_path):
    program = reader()
    manifest = program.save(stop=True).manifest
    other_files(program)
    now = files_below(program.data, program.library.parent)

    def fail():
        assert len(copies(program.engine)) == 4
        raise OSError(5, "as a disk does")

    with pytest.raises(ThawFailed):
        program.resume(manifest.info.snapshot_id, progress=at(Stage.RESTORE, fail))
    assert files_below(program.data, program.library.parent) == now
    assert left_in(program.engine.kept_dir) == set()
    without = msgspec.structs.replace(manifest, kept=[])
    with pytest.raises(HostIncompatible, match=r"library\.so"):
        resume(
            without, program.store, program.engine, exit_path=tmp_path / "x", progress=Progress()
        )
    program.resume(manifest.info.snapshot_id)
    assert seen(program) == [*THEN, "None"]


def test_what_the_images_do_not_read_is_not_written(reader, tmp_path):
    """A manifest may come from anybody. Where it names a file to which the kernel writes, that is left alone, too."""
    program = reader()
    manifest = program.save(stop=True).manifest
    written = program.data / "written"
    [held] = [file for file in manifest.kept if file.path.endswith("/open")]
    forged, streams = [], []
    for path in (str(written), str(tmp_path / "precious")):
        forged.append(msgspec.structs.replace(held, path=path, digest="0" * 64))
        streams.append(
            msgspec.structs.replace(manifest.stream(held.stream), name=forged[-1].stream)
        )
    manifest = msgspec.structs.replace(
        manifest,
        info=msgspec.structs.replace(manifest.info, snapshot_id="forged"),
        kept=[*manifest.kept, *forged],
        streams=[*manifest.streams, *streams],
    )
    program.store.publish(manifest)
    program.resume("forged")
    assert seen(program) == [*THEN, "None"]
    assert copies(program.engine) == []
    assert written.read_text() == ""
    assert not (tmp_path / "precious").exists()


def test_a_disk_without_room_is_named_before_anything_is_written(run, small_disk):
    program = run(
        """
        import os, time
        with open("large", "wb") as file:
            file.write(os.urandom(40 << 20))
        large = open("large", "rb")
        while True:
            print(len(os.pread(large.fileno(), 5, 39 << 20)), flush=True)
            time.sleep(0.01)
        """,
        keep_files=["large"],
    )
    program.fresh_line()
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    (Path(program.spec.cwd) / "large").unlink()
    here = program.engine
    program.engine = replace(here, spill_dir=small_disk / "spill")
    with pytest.raises(HostIncompatible, match=r"40 MB are needed on the disk for files"):
        program.resume(snapshot)
    assert left_in(program.engine.kept_dir) == set()
    program.engine = here
    program.resume(snapshot)
    assert program.fresh_line() == "5"
