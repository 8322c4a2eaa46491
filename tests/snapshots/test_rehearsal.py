"""A suspend proves that the kernel will come back before it kills anything."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from jupyter_gpuckpt.errors import GpuCkptError, KernelNotCheckpointable
from jupyter_gpuckpt.host import privileges
from jupyter_gpuckpt.snapshots import rehearsal
from jupyter_gpuckpt.wire.progress import Progress, ProgressRecord, Stage
from tests.snapshots.test_failing_saves import assert_runs_on

HOLDER = """
    import os, multiprocessing, socket, time
    listener = socket.create_server(("127.0.0.1", 0))
    client, server = socket.create_connection(listener.getsockname()), listener.accept()[0]
    client.sendall(b"on its way")
    data = open("data.csv", "w"); data.write("1,2"); data.close()
    read = open("data.csv")
    memory = os.urandom(3 << 20)
    lock = multiprocessing.get_context("spawn").Lock()
    deleted = open("deleted", "w+b"); deleted.write(b"kept"); deleted.flush(); os.unlink("deleted")
    n = 0
    while True:
        n += 1
        print(n, flush=True)
        time.sleep(0.01)
"""


@pytest.fixture
def program(run):
    """Return a program with memory, a semaphore, an open and a deleted file."""
    started = run(HOLDER)
    started.lines(more_than=3)
    return started


def at(stage: Stage, what) -> Progress:
    done = []

    def look(record: ProgressRecord) -> None:
        if record.stage == stage and not done:
            done.append(True)
            what()

    return Progress(look)


def test_a_file_that_goes_during_the_suspend_is_no_loss(program, tmp_path):
    data = Path(program.spec.cwd) / "data.csv"
    aside = data.with_name("aside")
    with pytest.raises(KernelNotCheckpointable, match=r"data\.csv.*is gone") as caught:
        program.save(stop=True, progress=at(Stage.STORE, lambda: data.rename(aside)))
    assert "runs on" in caught.value.hint
    assert program.store.snapshots() == []
    assert list((program.store.root / "manifests").iterdir()) == []
    assert_runs_on(program)
    aside.rename(data)
    saved = program.save(stop=True)
    program.resume(saved.manifest.info.snapshot_id)
    assert_runs_on(program)


def test_a_save_says_that_its_snapshot_cannot_be_resumed_here(program):
    data = Path(program.spec.cwd) / "data.csv"
    progress = at(Stage.STORE, lambda: data.rename(data.with_name("aside")))
    saved = program.save(progress=progress)
    assert any("cannot be resumed here" in text and "data.csv" in text for text in saved.warnings)
    assert [info.snapshot_id for info in program.store.snapshots()] == [
        saved.manifest.info.snapshot_id
    ]


def without_image(kind: str):
    def change(manifest):
        images = [image for image in manifest.images if not image.name.startswith(kind)]
        assert len(images) < len(manifest.images)
        return msgspec.structs.replace(manifest, images=images)

    return change


def without_stream(kind: str):
    def change(manifest):
        streams = [stream for stream in manifest.streams if not stream.name.startswith(kind)]
        assert len(streams) < len(manifest.streams)
        return msgspec.structs.replace(manifest, streams=streams)

    return change


def without_captured(kind: str):
    def change(manifest):
        captured = [file for file in manifest.captured if kind not in file.path]
        if len(captured) == len(manifest.captured) and not privileges.suffice():
            pytest.skip("without rights what is mapped by a name that is gone has none of these")
        assert len(captured) < len(manifest.captured)
        return msgspec.structs.replace(manifest, captured=captured)

    return change


def cut_short(manifest):
    streams = [
        msgspec.structs.replace(s, length=s.length - 4096) if s.name.startswith("pages/") else s
        for s in manifest.streams
    ]
    return msgspec.structs.replace(manifest, streams=streams)


KINDS = {
    "image": (without_image, ("pstree", "core", "pagemap", "files", "ghost", "pages-")),
    "stream": (without_stream, ("pages/", "images", "file/", "tcp")),
    "captured": (without_captured, ("link_remap",)),
}
CHANGES = {
    f"{what} {kind}": make(kind) for what, (make, kinds) in KINDS.items() for kind in kinds
} | {"cut short": cut_short}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_a_snapshot_lacks_is_found_before_the_kill(program, monkeypatch, change):
    """A defect of a save cannot be had in any other way than by making one."""

    def staged(store, manifest, needed):
        return original(store, change(manifest), needed)

    original = type(program.store).staged
    monkeypatch.setattr(type(program.store), "staged", staged)
    with pytest.raises(GpuCkptError) as caught:
        program.save(stop=True)
    assert "could not be resumed" in caught.value.message
    assert program.store.snapshots() == []
    monkeypatch.undo()
    assert_runs_on(program)


def test_descriptors_that_the_limit_here_does_not_allow_are_named(program, monkeypatch):
    limits = SimpleNamespace(RLIMIT_NOFILE=7, RLIM_INFINITY=-1, getrlimit=lambda kind: (2, 2))
    monkeypatch.setattr(rehearsal, "resource", limits)
    with pytest.raises(KernelNotCheckpointable, match="descriptor"):
        program.save(stop=True)
    assert_runs_on(program)


def test_a_working_directory_that_is_gone_for_long_is_in_the_images(run, tmp_path):
    program = run(
        """
        import os, time
        here = os.getcwd()
        os.mkdir("../elsewhere"); os.chdir("../elsewhere"); os.rmdir("../elsewhere")
        os.rename(here, here + "-renamed")
        while True:
            print(os.path.exists("/proc/self/cwd"), flush=True)
            time.sleep(0.01)
        """
    )
    log = tmp_path / "program-0-renamed" / "program.log"
    program.log = log
    program.lines(more_than=3)
    for _ in range(2):
        program.resume(program.save(stop=True).manifest.info.snapshot_id)
        program.fresh_line()
