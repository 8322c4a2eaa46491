"""Unpacking by several processes: the same bytes, the same errors, and nothing of them is left."""

import errno
import functools
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from jupyter_gpuckpt.errors import CheckpointError, ObjectCorrupt, OperationCancelled
from jupyter_gpuckpt.host import own_programs, processes
from jupyter_gpuckpt.images import worker_processes
from jupyter_gpuckpt.images.pack import BytesSource, pack
from jupyter_gpuckpt.images.unpack import FileSink, Unpacking
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.packs import read_index
from jupyter_gpuckpt.wire.progress import Progress
from tests.conftest import wait_for
from tests.worker_processes import workers, working

__all__ = ["workers"]

pytestmark = pytest.mark.usefixtures("workers")

MB = 1 << 20
THREADS = 6
RNG = np.random.default_rng(12)


@functools.cache  # a worker that runs none of these tests makes none
def mixed_bytes():
    """Return the same bytes of several kinds at each call."""
    return (
        RNG.bytes(5 * MB)
        + bytes(3 * MB)
        + RNG.normal(size=MB).astype(np.float32).tobytes()
        + b"some text that repeats itself\n" * 60_000
        + RNG.bytes(90_000) * 20
    )


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "store", pack_bytes=4 * MB) as store:
        yield store


@pytest.fixture
def streams(store):
    sources = [BytesSource("a", mixed_bytes()), BytesSource("b", mixed_bytes()[MB:])]
    return pack(sources, store, threads=3, progress=Progress()).streams


@pytest.fixture
def paths(tmp_path):
    """Yield a file on a disk, and one in memory."""
    in_memory = Path(f"/dev/shm/gpuckpt-test-{os.getpid()}")
    yield [tmp_path / "file", in_memory]
    in_memory.unlink(missing_ok=True)


def unpacking(store, streams, sinks):
    jobs = list(zip(streams, sinks, strict=True))
    return Unpacking(jobs, store, threads=THREADS)


def test_files_get_their_streams(store, streams, paths):
    progress = Progress()
    with progress.stage("read"):
        unpacking(store, streams, [FileSink(path) for path in paths]).run(progress)
        assert progress.record().done_bytes == 2 * len(mixed_bytes()) - MB
    assert [path.read_bytes() for path in paths] == [mixed_bytes(), mixed_bytes()[MB:]]


def test_an_altered_pack_is_refused_and_named(store, streams, paths):
    path = min((store.root / "packs").iterdir())
    entry = read_index(path)[3]
    data = bytearray(path.read_bytes())
    data[entry.offset + 7] ^= 1
    path.write_bytes(data)
    with pytest.raises(ObjectCorrupt, match=rf"Chunk [0-9a-f]{{16}} in pack {path.name}"):
        unpacking(store, streams, [FileSink(path) for path in paths]).run(Progress())


def test_it_can_be_cancelled(store, streams, paths):
    progress = Progress()
    begun = unpacking(store, streams, [FileSink(path) for path in paths])
    progress.cancel()
    with pytest.raises(OperationCancelled):
        begun.run(progress)


def test_it_can_be_stopped(store, streams, paths):
    begun = unpacking(store, streams, [FileSink(path) for path in paths])
    begun.stop()
    with pytest.raises(OperationCancelled):
        begun.run(Progress())
    wait_for(lambda: not working())


def test_what_the_system_refuses_is_raised(store, streams, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"")
    descriptor = os.open(path, os.O_RDONLY)

    class Unprepared(FileSink):
        def prepare(self, length):
            pass

    try:
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            unpacking(store, streams[:1], [Unprepared(descriptor)]).run(Progress())
    finally:
        os.close(descriptor)


def test_one_that_is_killed_is_said(store, streams, paths):
    begun = unpacking(store, streams, [FileSink(path) for path in paths])
    wait_for(working)
    os.kill(working()[0], signal.SIGKILL)
    with pytest.raises(CheckpointError, match="has ended"):
        begun.run(Progress())


def test_those_that_are_never_told_anything_end(store, streams, paths):
    begun = unpacking(store, streams, [FileSink(path) for path in paths])
    wait_for(lambda: len(working()) == THREADS)
    del begun


def test_they_end_with_the_process_that_asked_for_them():
    code = """
        import time
        import numpy
        from jupyter_gpuckpt.images import spans
        from jupyter_gpuckpt.images import worker_processes as processes, unpack_client
        none = [numpy.empty(0, kind) for kind in (spans.SPAN, spans.RECORD, spans.TARGET)]
        asked = unpack_client.UnpackClient(spans.SpanTable([], *none), [], 8)
        print(processes._fork_server.pid, flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
        parent = int(asking.stdout.readline())
        wait_for(lambda: len(processes.children(parent)) == 8)
        left = [parent, *processes.children(parent)]
        asking.kill()
    wait_for(lambda: not any(processes.alive(pid) for pid in left))


def test_one_that_makes_the_others_is_started_again_when_it_was_lost(store, streams, paths):
    unpacking(store, streams, [FileSink(path) for path in paths]).run(Progress())
    before = worker_processes._fork_server.pid
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: not processes.alive(before))
    unpacking(store, streams, [FileSink(path) for path in paths]).run(Progress())
    assert worker_processes._fork_server.pid != before


@pytest.mark.parametrize("cause", ["no interpreter", "an upgrade of the package"])
def test_where_they_cannot_be_started_threads_do_it(
    store, streams, paths, monkeypatch, cause, caplog
):
    if cause == "no interpreter":
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
    else:
        monkeypatch.setattr(own_programs, "installed_version", lambda: "99")
    monkeypatch.setattr(worker_processes, "_fork_server", worker_processes._ForkServer())
    unpacking(store, streams, [FileSink(path) for path in paths]).run(Progress())
    assert [path.read_bytes() for path in paths] == [mixed_bytes(), mixed_bytes()[MB:]]
    assert worker_processes._fork_server.pid is None
    assert ("to 99 meanwhile" in caplog.text) == (cause != "no interpreter")


def test_few_bytes_or_threads_are_for_one_process(monkeypatch):
    monkeypatch.undo()
    assert worker_processes.worth_it(1 << 30, 16)
    assert not worker_processes.worth_it(1 << 30, 1)
    assert not worker_processes.worth_it(1 << 20, 16)
    # More threads wait longer for the GIL.
    assert worker_processes.worth_it(200 << 20, 16)
    assert not worker_processes.worth_it(200 << 20, 4)
