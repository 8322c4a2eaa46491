"""Several resumes of one snapshot at the same time: they share what is read, and the failure of one is not that of another."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpuckpt.engine.tree.tree import Tree
from jupyter_gpuckpt.errors import ObjectCorrupt, OperationCancelled, ThawFailed
from jupyter_gpuckpt.images import unpacked_file
from jupyter_gpuckpt.images.sinks import FileSink
from jupyter_gpuckpt.images.unpack import Unpacking
from jupyter_gpuckpt.snapshots import unpacked_snapshots
from jupyter_gpuckpt.snapshots.unpacked_snapshots import UnpackedSnapshots
from jupyter_gpuckpt.wire.progress import Progress, Stage
from tests.conftest import wait_for
from tests.snapshots.test_damaged_packs import largest, zero
from tests.snapshots.test_failing_resumes import at, inits

#: It tells a digest of its memory at each SIGUSR1. Its child shares memory with it, which CRIU restores from a file of its own.
HOLDER = """
    import hashlib, mmap, os, signal, time
    held = bytearray(os.urandom(24 << 20))
    inherited = mmap.mmap(-1, 12 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    inherited[4 << 20 : 8 << 20] = os.urandom(4 << 20)
    child = os.fork()
    held[5 << 20 : 6 << 20] = os.urandom(1 << 20)
    if not child:
        while True:
            time.sleep(10)
    def tell(*_):
        print(hashlib.sha256(held + inherited[:]).hexdigest(), flush=True)
    signal.signal(signal.SIGUSR1, tell)
    tell()
    while True:
        time.sleep(10)
"""
COPIES = 4
NAMELESS = re.compile(r"(^|\s|/gpu)/#\d+ \(deleted\)$")


@pytest.fixture
def saved(run):
    """Return a suspended program, its snapshot's id, and the digest of its memory."""
    program = run(HOLDER)
    [digest] = program.lines(more_than=0)
    return program, program.save(stop=True).manifest.info.snapshot_id, digest


@pytest.fixture
def unpacked() -> Iterator[UnpackedSnapshots]:
    """Yield what resumes share; nothing of it is kept after the test."""
    shared = UnpackedSnapshots()
    yield shared
    shared.close()


class Resumes:
    """Resumes of one snapshot at the same time, each with a progress of its own."""

    def __init__(self, program, snapshot_id: str, unpacked, progresses: list[Progress]) -> None:
        self.trees = list[Tree]()
        self.errors = list[BaseException]()

        def resume(progress: Progress) -> None:
            try:
                resumed = program.resume(snapshot_id, unpacked=unpacked, progress=progress)
                self.trees.append(resumed.tree)
            except BaseException as error:
                self.errors.append(error)

        self._threads = [threading.Thread(target=resume, args=(one,)) for one in progresses]
        for thread in self._threads:
            thread.start()

    def join(self) -> Resumes:
        for thread in self._threads:
            thread.join()
        return self


def check(program, tree: Tree, digest: str) -> None:
    """Compare the memory of a copy with that of the program that was saved."""
    before = len(program.lines())
    os.kill(tree.kernel_pid, signal.SIGUSR1)
    assert program.lines(more_than=before)[before:] == [digest]


def in_memory() -> list[str]:
    """Return the unpacked files that this process has open or mapped. A number is shown for them, below their tree's folder."""
    gc.collect()
    found = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [
        text
        for text in [*found, *Path("/proc/self/maps").read_text().splitlines()]
        if NAMELESS.search(text)
    ]


@pytest.fixture
def readings(monkeypatch) -> list[int]:
    """Return the bytes of each reading of the private pages that is begun: by a resume for itself, or for all."""
    found, run = list[int](), Unpacking.run

    def running(unpacking, progress):
        length = sum(stream.length for stream, _ in unpacking._jobs)
        if length > 20 << 20:
            found.append(length)
        run(unpacking, progress)

    monkeypatch.setattr(Unpacking, "run", running)
    return found


@pytest.mark.parametrize("threads", [1, 4])
def test_all_copies_have_the_same_memory_which_is_read_once(
    saved, unpacked, readings, monkeypatch, threads
):
    monkeypatch.setattr(unpacked_snapshots, "_KEPT_SECONDS", 0.0)
    monkeypatch.setattr(unpacked_file, "_THREAD_BYTES", (64 << 20) // threads)
    program, snapshot_id, digest = saved
    barrier = threading.Barrier(COPIES)
    progresses = [at(Stage.NAMESPACES, barrier.wait) for _ in range(COPIES)]
    resumes = Resumes(program, snapshot_id, unpacked, progresses).join()
    assert resumes.errors == []
    assert len(readings) == 1
    for tree in resumes.trees:
        check(program, tree, digest)
    assert wait_for(lambda: not in_memory())


def test_a_single_resume_shares_nothing(saved, unpacked):
    program, snapshot_id, digest = saved
    seen = list[list[str]]()
    resumed = program.resume(
        snapshot_id, unpacked=unpacked, progress=at(Stage.AUDIT, lambda: seen.append(in_memory()))
    )
    assert seen == [[]]
    check(program, resumed.tree, digest)


def test_the_next_resume_uses_what_is_kept_and_a_lack_of_memory_drops_it(
    saved, unpacked, readings, monkeypatch
):
    program, snapshot_id, digest = saved
    monkeypatch.setattr(unpacked_snapshots, "_LOOK_SECONDS", 0.02)
    for _ in range(3):
        resumed = program.resume(snapshot_id, unpacked=unpacked)
        check(program, resumed.tree, digest)
    # The first one reads a part for CRIU, and then the rest.
    assert len(readings) == 2 + 1
    assert in_memory()
    monkeypatch.setattr(unpacked_snapshots.processes, "mem_available", lambda: 100 << 20)
    assert wait_for(lambda: not in_memory())


def test_where_memory_is_short_each_reads_for_itself(saved, unpacked, readings, monkeypatch):
    program, snapshot_id, digest = saved
    barrier = threading.Barrier(2)
    progresses = [at(Stage.NAMESPACES, barrier.wait) for _ in range(2)]
    # There is room for both copies, and little more.
    monkeypatch.setattr(unpacked_snapshots.processes, "mem_available", lambda: 200 << 20)
    resumes = Resumes(program, snapshot_id, unpacked, progresses).join()
    assert resumes.errors == []
    # Each reads a part for CRIU, and then the rest.
    assert len(readings) == 2 * 2
    for tree in resumes.trees:
        check(program, tree, digest)


class Held:
    """Holds back what is read for all, until the test lets it go on."""

    def __init__(self, monkeypatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        write = FileSink.write

        def writing(sink, offset, data):
            if isinstance(sink._target, int):
                self.begun.set()
                assert self.go_on.wait(120)
            write(sink, offset, data)

        monkeypatch.setattr(FileSink, "write", writing)


def cancel(progress: Progress, program) -> None:
    progress.cancel()


def kill_init(progress: Progress, program) -> None:
    os.kill(inits(program.log.parent)[0], signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "error"),
    [(cancel, OperationCancelled), (kill_init, ThawFailed)],
    ids=["cancel", "kill"],
)
def test_the_first_one_fails_and_the_others_do_not(saved, unpacked, monkeypatch, end, error):
    monkeypatch.setattr(unpacked_snapshots, "_KEPT_SECONDS", 0.0)
    program, snapshot_id, digest = saved
    held, barrier = Held(monkeypatch), threading.Barrier(COPIES)
    progresses = [at(Stage.NAMESPACES, barrier.wait) for _ in range(COPIES)]
    resumes = Resumes(program, snapshot_id, unpacked, progresses)
    assert held.begun.wait(120)
    assert wait_for(lambda: len(inits(program.log.parent)) == COPIES)
    end(progresses[0], program)
    if end is cancel:
        assert wait_for(lambda: len(resumes.errors) == 1)
    held.go_on.set()
    resumes.join()
    assert [type(one) for one in resumes.errors] == [error]
    assert len(resumes.trees) == COPIES - 1
    for tree in resumes.trees:
        check(program, tree, digest)
    assert wait_for(lambda: not in_memory())


def test_damage_fails_all_of_them_as_it_fails_one(saved, unpacked, tmp_path):
    program, snapshot_id, digest = saved
    pack = largest(program.store)
    good = pack.read_bytes()
    zero(pack)
    barrier = threading.Barrier(2)
    progresses = [at(Stage.NAMESPACES, barrier.wait) for _ in range(2)]
    resumes = Resumes(program, snapshot_id, unpacked, progresses).join()
    assert [type(one) for one in resumes.errors] == [ObjectCorrupt] * 2
    assert inits(tmp_path) == []
    resumes.errors.clear()  # their tracebacks have what was read
    assert wait_for(lambda: not in_memory())
    pack.write_bytes(good)
    resumed = program.resume(snapshot_id, unpacked=unpacked)
    check(program, resumed.tree, digest)
