"""A resume writes beside the user's files only what it takes away again, and never over anything."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from jupyter_gpuckpt.engine import placing
from jupyter_gpuckpt.errors import GpuCkptError, ThawFailed
from jupyter_gpuckpt.wire.progress import Progress, Stage
from tests.snapshots.test_failing_saves import assert_runs_on
from tests.snapshots.test_rehearsal import at

#: A file whose name is gone and that has another: CRIU makes a link beside it.
HOLDER = """
    import os, time
    os.makedirs("deep/er")
    held = open("deep/er/held", "w+"); held.write("kept"); held.flush()
    os.link("deep/er/held", "other"); os.unlink("deep/er/held")
    n = 0
    while True:
        n += 1
        held.seek(0); assert held.read() == "kept"
        print(n, flush=True)
        time.sleep(0.01)
"""


@pytest.fixture
def suspended(run):
    """Return a program with such a file, its manifest, and the path of the link."""
    program = run(HOLDER)
    program.lines(more_than=3)
    manifest = program.save(stop=True).manifest
    (link,) = [Path(one.path) for one in manifest.captured if "link_remap" in one.path]
    assert link.parent.name == "er"
    assert not link.exists()
    return program, manifest, link


def tree_of(folder):
    """Return the names of all files below a directory, except the log."""
    return sorted(
        path for path in folder.rglob("*") if path.suffix != ".log" and "exit-" not in path.name
    )


def test_somebodys_file_in_the_place_of_a_link_stays_as_it_is(suspended):
    program, manifest, link = suspended
    link.write_text("precious")
    link.chmod(0o640)
    before = link.stat()
    with pytest.raises(ThawFailed, match=link.name):
        program.resume(manifest.info.snapshot_id)
    assert (link.read_text(), link.stat().st_mtime_ns) == ("precious", before.st_mtime_ns)
    link.unlink()
    program.resume(manifest.info.snapshot_id)
    assert_runs_on(program)
    assert not link.exists()


def test_a_resume_that_fails_leaves_files_as_they_were(suspended):
    program, manifest, link = suspended
    link.parent.rmdir()
    link.parent.parent.rmdir()
    before = tree_of(Path(program.spec.cwd))

    def fail():
        assert link.exists()
        raise OSError(5, "as a disk does")

    with pytest.raises(ThawFailed):
        program.resume(manifest.info.snapshot_id, progress=at(Stage.RESTORE, fail))
    assert tree_of(Path(program.spec.cwd)) == before
    program.resume(manifest.info.snapshot_id)
    assert_runs_on(program)


def test_what_a_killed_daemon_left_is_taken_away_and_nothing_else(suspended):
    _, manifest, link = suspended
    link.write_text("precious")
    placing.remove_links(manifest)
    assert link.read_text() == "precious"
    (record,) = [one for one in manifest.captured if one.path == str(link)]
    link.write_text("kept")
    link.chmod(record.mode)
    os.utime(link, ns=(record.mtime_ns, record.mtime_ns))
    link.with_name(link.name + ".gpuckpt-unfinished").touch()
    placing.remove_links(manifest)
    assert list(link.parent.iterdir()) == []


FORGED = {
    "a file of the host": lambda path: f"{path}/victim",
    "a link that no image names": lambda path: f"{path}/link_remap.99",
}


@pytest.mark.parametrize("place", FORGED.values(), ids=FORGED)
def test_a_forged_file_is_refused_before_anything_is_written(suspended, tmp_path, place):
    program, manifest, link = suspended
    victim = Path(place(tmp_path))
    victim.write_text("precious")
    (record,) = [one for one in manifest.captured if one.path == str(link)]
    evil = msgspec.structs.replace(record, path=str(victim), mode=0o4755, uid=0)
    for mode in (0o4755, 0o755):
        evil = msgspec.structs.replace(evil, mode=mode)
        forged = msgspec.structs.replace(
            manifest,
            info=msgspec.structs.replace(manifest.info, snapshot_id=f"forged{mode}"),
            captured=[*manifest.captured, evil],
        )
        program.store.publish(forged)
        with pytest.raises(GpuCkptError):
            program.resume(f"forged{mode}", progress=Progress())
        assert victim.read_text() == "precious"
        assert victim.stat().st_mode & 0o7000 == 0
        assert not link.exists()
