"""Packing by several processes: what threads do, and nothing is left when it goes wrong."""

import functools
import os
import resource
import signal
import sys

import numpy as np
import pytest

from jupyter_gpuckpt.engine.criu.images import Extent
from jupyter_gpuckpt.engine.memory.reader import CopiedMemory, ProcessMemory
from jupyter_gpuckpt.errors import CheckpointError, OperationCancelled, StoreFull
from jupyter_gpuckpt.host import own_programs
from jupyter_gpuckpt.images import pack_client, worker_processes
from jupyter_gpuckpt.images.pack import BytesSource, FileSource, pack
from jupyter_gpuckpt.images.unpack import read_stream
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.progress import Progress
from tests.conftest import wait_for
from tests.worker_processes import workers, working

__all__ = ["workers"]

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("workers")]

MB = 1 << 20
THREADS = 4
RNG = np.random.default_rng(41)


@functools.cache  # a worker that runs none of these tests makes none
def mixed_bytes():
    """Return the same bytes of several kinds at each call."""
    return (
        RNG.bytes(9 * MB)
        + bytes(5 * MB)
        + RNG.normal(size=4 * MB).astype(np.float32).tobytes()
        + b"some text that repeats itself\n" * 200_000
        + RNG.bytes(90_000) * 40
        + bytes(77)
    )


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "store", pack_bytes=8 * MB) as store:
        yield store


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(mixed_bytes())
    return path


@pytest.fixture
def sources(path):
    """Return sources: a file, memory of this process, a copy of it, and bytes that only this process has."""
    array = np.frombuffer(bytearray(mixed_bytes()), np.uint8)
    address = array.ctypes.data
    border = 3 * MB + 4096
    extents = [
        Extent(address, border, True),
        Extent(address + border, len(mixed_bytes()) - border, True),
    ]
    memory = ProcessMemory("memory", os.getpid(), extents)
    memory.keep([(address + MB, address + 2 * MB)])
    copied = CopiedMemory("copied", memoryview(bytearray(mixed_bytes()[MB:])))
    nothing = CopiedMemory("nothing", memoryview(bytearray(1))[:0])
    long = FileSource("long", path, chunk_pages=256)
    own = BytesSource("own", mixed_bytes()[: 2 * MB])
    yield [FileSource("file", path), long, memory, copied, nothing, own]
    del array  # it is read until then


def content(sources):
    return {source.name: mixed_bytes() for source in sources} | {
        "copied": mixed_bytes()[MB:],
        "nothing": b"",
        "own": mixed_bytes()[: 2 * MB],
    }


def test_they_store_what_threads_store(tmp_path, store, sources, monkeypatch):
    progress = Progress()
    with progress.stage("store"):
        first = pack(sources, store, threads=THREADS, progress=progress)
        assert progress.record().done_bytes == first.raw_bytes
    assert {s.name: read_stream(s, store) for s in first.streams} == content(sources)
    second = pack(sources, store, threads=THREADS, progress=Progress())
    assert second == first._replace(new_bytes=0)
    monkeypatch.setattr(worker_processes, "_MIN_PROCESSES", 100)
    with LocalStore(tmp_path / "other") as other:
        assert pack(sources, other, threads=THREADS, progress=Progress()) == first


def test_their_processor_time_counts_also_when_they_have_ended(store, sources):
    def own():
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    worker_processes._fork_server.warm_up()
    wait_for(worker_processes.is_ready)
    before, before_own = worker_processes.processor_seconds(), own()
    pack(sources, store, threads=THREADS, progress=Progress())
    wait_for(lambda: not working())
    theirs = worker_processes.processor_seconds() - before - (own() - before_own)
    # To hash and compress a hundred MB of all kinds takes a second.
    assert theirs > 0.1


def test_a_file_that_becomes_shorter_is_said(store, path):
    sources = [FileSource("file", path)]
    os.truncate(path, len(mixed_bytes()) // 2)
    with pytest.raises(CheckpointError, match="file changed while it was saved"):
        pack(sources, store, threads=THREADS, progress=Progress())


def test_memory_of_a_process_that_ends_is_said(store):
    gone = ProcessMemory("memory", os.getpid(), [Extent(0x10000, 64 * MB, True)])
    with pytest.raises(CheckpointError, match="memory of the kernel could not be read"):
        pack([gone], store, threads=THREADS, progress=Progress())


def test_one_that_is_killed_is_said(store, sources, monkeypatch):
    receive = pack_client.receive

    def killed(connection, *kinds):
        if pack_client.Cut in kinds:
            os.kill(working()[0], signal.SIGKILL)
        return receive(connection, *kinds)

    monkeypatch.setattr(pack_client, "receive", killed)
    with pytest.raises(CheckpointError, match="has ended"):
        pack(sources, store, threads=THREADS, progress=Progress())


def test_a_cancelled_one_ends(store, sources):
    progress = Progress()
    progress.cancel()
    with pytest.raises(OperationCancelled):
        pack(sources, store, threads=THREADS, progress=progress)


def test_a_full_disk_is_the_stores_error(store, sources, monkeypatch):
    def full(self, records):
        raise StoreFull("The disk is full.")

    monkeypatch.setattr("jupyter_gpuckpt.store.writer.PackWriter.append_all", full)
    with pytest.raises(StoreFull):
        pack(sources, store, threads=THREADS, progress=Progress())


@pytest.mark.parametrize(
    "builder", ["jupyter_gpuckpt.images.pack:nothing", f"{__name__}:refused", "nowhere:at_all"]
)
def test_what_another_process_may_not_read_threads_store(store, path, builder, caplog):
    class Unreadable(FileSource):
        def share(self):
            return builder, b""

    source = Unreadable("file", path)
    packed = pack([source], store, threads=THREADS, progress=Progress())
    assert read_stream(packed.streams[0], store) == mixed_bytes()
    assert "a thread packs" in caplog.text


def refused(data):
    """Return a source whose reads fail, as in a process that may not read."""

    class Refused:
        name, length = "file", 1

        def read_into(self, offset, buffer):
            raise PermissionError

    return Refused()


@pytest.mark.parametrize("cause", ["no interpreter", "an upgrade of the package"])
def test_where_they_cannot_be_started_threads_do_it(store, sources, monkeypatch, cause, caplog):
    if cause == "no interpreter":
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
    else:
        monkeypatch.setattr(own_programs, "installed_version", lambda: "99")
    monkeypatch.setattr(worker_processes, "_fork_server", worker_processes._ForkServer())
    packed = pack(sources, store, threads=THREADS, progress=Progress())
    assert {s.name: read_stream(s, store) for s in packed.streams} == content(sources)
    assert worker_processes._fork_server.pid is None
    assert ("to 99 meanwhile" in caplog.text) == (cause != "no interpreter")
