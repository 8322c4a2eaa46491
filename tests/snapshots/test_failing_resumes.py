"""Resumes that fail on the way: nothing of them is left, and the snapshot works afterwards."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from jupyter_gpuckpt.engine import thaw
from jupyter_gpuckpt.engine.memory.stopped_pages import StoppedPages
from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.errors import CheckpointError, ObjectCorrupt, ThawDisturbed, ThawFailed
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.wire.progress import RESUME_STAGES, Progress, ProgressRecord, Stage
from tests.parameters import some_slow

COUNTER = """
    import mmap, os, time
    data = os.urandom(20 << 20)
    shared = mmap.mmap(-1, 1 << 20)
    child = os.fork()
    count = 0
    while True:
        count += 1
        if child:
            print(count, flush=True)
        time.sleep(0.01)
"""


@pytest.fixture
def suspended(run):
    """Return a program that is suspended, and its snapshot's id."""
    program = run(COUNTER)
    program.lines(more_than=3)
    return program, program.save(stop=True).manifest.info.snapshot_id


def inits(directory: Path) -> list[int]:
    """Return the inits that were started for programs below this directory."""
    marker, found = str(directory).encode(), []
    for pid in processes.every():
        with suppress(OSError):
            if (
                processes.name(pid) == "gpuckpt-init"
                and marker in Path(f"/proc/{pid}/cmdline").read_bytes()
            ):
                found.append(pid)
    return found


def check(program, snapshot_id: str, tmp_path: Path) -> None:
    """Nothing is left of the failed one, and the next one succeeds."""
    assert inits(tmp_path) == []
    assert not launch.alive(program.tree)
    assert {path.name for path in (tmp_path / "spill").glob("*")} <= {"criu.kdat"}
    count = len(program.lines())
    program.resume(snapshot_id)
    numbers = [int(line) for line in program.lines(more_than=count + 1)[count - 1 : count + 1]]
    assert numbers[1] == numbers[0] + 1


def at(stage: str, what) -> Progress:
    """Do something once, when the resume comes to this stage."""
    done = []

    def look(record: ProgressRecord) -> None:
        if record.stage == stage and not done:
            done.append(True)
            what()

    return Progress(look)


@pytest.mark.parametrize(
    "stage", some_slow([Stage.IMAGES, Stage.RESTORE, Stage.PAGES], {Stage.RESTORE, Stage.PAGES})
)
def test_a_killed_init_leaves_nothing_and_is_named(suspended, tmp_path: Path, stage: Stage) -> None:
    program, snapshot_id = suspended

    def kill() -> None:
        [init] = inits(tmp_path)
        os.kill(init, signal.SIGKILL)
        assert launch.wait_until(lambda: processes.state(init) in (None, "Z", "X"), timeout=120)

    with pytest.raises(ThawFailed, match="first process of the kernel was killed") as caught:
        program.resume(snapshot_id, progress=at(stage, kill))
    assert "untouched" in caught.value.hint
    check(program, snapshot_id, tmp_path)


@pytest.mark.parametrize(
    ("signum", "said"), [("KILL", "ended with status 137"), ("STOP", "no progress")]
)
def test_a_criu_that_is_killed_or_hangs_leaves_nothing(suspended, tmp_path, signum, said) -> None:
    program, snapshot_id = suspended
    good = program.engine
    # As soon as it has its log, which is before it makes any task.
    interrupted = f'{good.criu} "$@" & until [ -e $LOG ]; do :; done; kill -{signum} $!; wait $!'
    broken = criu_program(tmp_path / "criu", interrupted)
    patience = 2.0 if signum == "STOP" else 1000
    program.engine = replace(good, criu=broken, stall_seconds=patience)
    with pytest.raises(ThawFailed, match=said) as caught:
        program.resume(snapshot_id)
    assert "untouched" in caught.value.hint
    program.engine = good
    check(program, snapshot_id, tmp_path)


@pytest.mark.parametrize(
    "stage",
    some_slow(
        [stage for stage in RESUME_STAGES if "gpu" not in stage],
        {Stage.NAMESPACES, Stage.RESTORE, Stage.LET_GO},
    ),
)
def test_a_fault_at_the_begin_of_any_stage_leaves_nothing(
    suspended, tmp_path: Path, stage: Stage
) -> None:
    program, snapshot_id = suspended

    def fail() -> None:
        raise ThawFailed(f"broken at {stage}", hint="none")

    with pytest.raises(ThawFailed, match=f"broken at {stage}"):
        program.resume(snapshot_id, progress=at(stage, fail))
    check(program, snapshot_id, tmp_path)


def criu_program(path: Path, text: str) -> Path:
    """Write a program that takes the place of CRIU; return its path. `text`: what it does at a restore; LOG stands for CRIU's log file."""
    path.write_text(f"#!/bin/sh\nLOG=/dev/shm/.gpuckpt/images/restore.log\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_criu_that_cannot_start_says_why(suspended, tmp_path):
    program, snapshot_id = suspended
    good = program.engine
    broken = criu_program(tmp_path / "criu", "echo 'criu: libnl-3.so.200 is missing' >&2; exit 127")
    program.engine = replace(good, criu=broken)
    with pytest.raises(ThawFailed, match="could not be run") as caught:
        program.resume(snapshot_id)
    assert "libnl-3.so.200 is missing" in caught.value.details
    program.engine = good
    check(program, snapshot_id, tmp_path)


class Broken:
    """Breaks `StoppedPages.write` at its second call in a resume, with what the test does to the process that is written to."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, act: Callable[[StoppedPages], None]
    ) -> None:
        self._calls, self._act, self._lock = 0, act, threading.Lock()
        write = StoppedPages.write

        def broken(pages: StoppedPages, offset: int, data: memoryview) -> None:
            with self._lock:
                self._calls += 1
                if self._calls == 2:
                    self._act(pages)
            write(pages, offset, data)

        monkeypatch.setattr(StoppedPages, "write", broken)


def kill(pages: StoppedPages) -> None:
    os.kill(pages.pid, signal.SIGKILL)
    gone = (None, "Z", "X")
    assert launch.wait_until(lambda: processes.state(pages.pid) in gone, timeout=120)


def wake(pages: StoppedPages) -> None:
    """Tell the tree's first task, which CRIU traces, and its child to go on, whichever of the two is written to."""
    parent = processes.parent(pages.pid)
    tree = {pages.pid, *processes.children(pages.pid)}
    if parent is not None and processes.name(parent) == processes.name(pages.pid):
        tree.add(parent)
    assert len(tree) == 2
    for pid in tree:
        os.kill(pid, signal.SIGCONT)


def short(pages: StoppedPages) -> None:
    """Move pages to the end of a mapping, so that writes to them are short."""
    ends = {area.end for area in processes.maps(pages.pid)}
    starts = {area.start for area in processes.maps(pages.pid)}
    pages.pieces = [
        replace(piece, address=max(ends - starts) - 4096) if piece.length > 4096 else piece
        for piece in pages.pieces
    ]


def refuse(pages: StoppedPages) -> None:
    raise OSError(errno.EIO, "the disk is broken")


@pytest.mark.parametrize(
    ("act", "error", "said"),
    [
        (short, ThawFailed, "could not be put in place"),
        (kill, ThawFailed, "ended while its memory was put in place"),
        (refuse, ThawFailed, "the disk is broken"),
    ],
    ids=["short", "killed", "refused"],
)
def test_what_happens_while_memory_is_filled_leaves_nothing(
    suspended, tmp_path, monkeypatch, act, error, said
):
    program, snapshot_id = suspended
    with monkeypatch.context() as broken:
        Broken(broken, act)
        with pytest.raises(error, match=said) as caught:
            program.resume(snapshot_id)
    assert "untouched" in caught.value.hint
    check(program, snapshot_id, tmp_path)


@pytest.mark.parametrize("again", some_slow([False, True], {True}), ids=["once", "always"])
def test_a_task_that_is_told_to_go_on_while_memory_is_filled_does_not(
    suspended, tmp_path, monkeypatch, caplog, again
):
    program, snapshot_id = suspended
    write, attempts = StoppedPages.write, list[int]()
    monkeypatch.setattr(thaw, "_ERROR_SECONDS", 0.5)

    def woken(pages: StoppedPages, offset: int, data: memoryview) -> None:
        [init] = inits(tmp_path)
        attempts.extend({init} - {*attempts})
        if again or init == attempts[0]:
            wake(pages)
        write(pages, offset, data)

    with monkeypatch.context() as disturbed:
        disturbed.setattr(StoppedPages, "write", woken)
        if again:
            with pytest.raises(ThawDisturbed, match="Another program sent SIGCONT") as caught:
                program.resume(snapshot_id)
            assert "untouched" in caught.value.hint
        else:
            check(program, snapshot_id, tmp_path)
    # CRIU, which traces the first task, gives such a restore up.
    assert len(attempts) == 2
    assert "attempted again" in caplog.text
    if again:
        check(program, snapshot_id, tmp_path)


def test_memory_that_does_not_come_is_not_waited_for(suspended, tmp_path, monkeypatch):
    program, snapshot_id = suspended
    patient, program.engine = program.engine, replace(program.engine, stall_seconds=1.0)

    def wait(pages: StoppedPages) -> None:
        assert launch.wait_until(lambda: not inits(tmp_path), timeout=120)

    with monkeypatch.context() as broken:
        Broken(broken, wait)
        with pytest.raises(ThawFailed, match="no progress"):
            program.resume(snapshot_id)
    program.engine = patient
    check(program, snapshot_id, tmp_path)


def test_a_damaged_store_leaves_nothing(suspended, tmp_path):
    program, snapshot_id = suspended
    packs = list((tmp_path / "store").rglob("*.pack"))
    whole = {pack: pack.read_bytes() for pack in packs}
    for pack, data in whole.items():
        middle = len(data) // 2
        flipped = bytes(byte ^ 255 for byte in data[middle : middle + 4096])
        pack.chmod(0o600)
        pack.write_bytes(data[:middle] + flipped + data[middle + 4096 :])
    with pytest.raises(ObjectCorrupt):
        program.resume(snapshot_id)
    for pack, data in whole.items():
        pack.write_bytes(data)
    check(program, snapshot_id, tmp_path)


def test_a_restore_that_has_failed_and_does_not_end_is_not_waited_for(suspended, tmp_path):
    program, snapshot_id = suspended
    good = program.engine
    logged = "pie: 12: Error (criu/pie/restorer.c:347): Unable to restore capabilities: -1"
    broken = criu_program(tmp_path / "criu", f"echo '{logged}' > $LOG; exec sleep 1000")
    program.engine = replace(good, criu=broken, stall_seconds=1000)
    with pytest.raises(ThawFailed, match="lacks a capability") as caught:
        program.resume(snapshot_id)
    assert caught.value.details == logged
    program.engine = good
    check(program, snapshot_id, tmp_path)


def test_what_init_says_reaches_the_user(suspended, tmp_path):
    program, snapshot_id = suspended
    good = program.engine
    init = tmp_path / "init"
    init.write_text("#!/bin/sh\necho 'cannot execute: wrong architecture' >&2; exit 1\n")
    init.chmod(0o755)
    program.engine = replace(good, init=init)
    with pytest.raises(CheckpointError) as caught:
        program.resume(snapshot_id)
    assert "wrong architecture" in caught.value.details
    program.engine = replace(good, init=tmp_path / "missing")
    with pytest.raises(CheckpointError, match="could not be started"):
        program.resume(snapshot_id)
    program.engine = good
    check(program, snapshot_id, tmp_path)
