"""How far an unpacking has written its streams, for threads that use them meanwhile."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from jupyter_gpuckpt.errors import ObjectCorrupt
from jupyter_gpuckpt.images.pack import BytesSource, pack
from jupyter_gpuckpt.images.unpack import FileSink, Unpacking
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.packs import read_index
from jupyter_gpuckpt.wire.progress import Progress
from tests.worker_processes import workers

__all__ = ["workers"]

MB = 1 << 20
RNG = np.random.default_rng(13)
_WAIT_SECONDS = 60


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "store", pack_bytes=4 * MB) as store:
        yield store


@pytest.fixture
def datas():
    """Return two streams: of the first one's middle the second one's beginning, and zeros."""
    middle = RNG.bytes(3 * MB)
    return [RNG.bytes(9 * MB) + middle + RNG.bytes(2 * MB), middle + bytes(2 * MB) + RNG.bytes(MB)]


@pytest.fixture
def streams(store, datas):
    # The second one is stored first, so that the packs have another order than the streams. One thread stores chunks in their order:
    # with several a run may have chunks from far apart, and ends late.
    [second] = pack([BytesSource("b", datas[1])], store, threads=1, progress=Progress()).streams
    [first] = pack([BytesSource("a", datas[0])], store, threads=1, progress=Progress()).streams
    return [first, second]


class Gated:
    """A sink that writes nothing from an offset on before it is opened."""

    def __init__(self, length: int, closed_from: int) -> None:
        self.data = bytearray(length)
        self.opened = threading.Event()
        self._from = closed_from

    def write(self, offset: int, data: memoryview) -> None:
        if offset + len(data) > self._from:
            assert self.opened.wait(_WAIT_SECONDS)
        self.data[offset : offset + len(data)] = data


@pytest.mark.parametrize("threads", [1, 3])
def test_a_beginning_can_be_used_before_the_rest_is_written(store, streams, datas, threads):
    sinks = [Gated(len(datas[0]), 10 * MB), Gated(len(datas[1]), 0)]
    jobs = list(zip(streams, sinks, strict=True))
    unpacking = Unpacking(jobs, store, threads=threads, by_stream=True)
    with ThreadPoolExecutor() as pool:
        try:
            done = pool.submit(unpacking.run, Progress())
            for end in (1, MB, 4 * MB):
                written = pool.submit(unpacking.wait_for, 0, 0, end).result(_WAIT_SECONDS)
                assert end <= written <= 10 * MB
                assert sinks[0].data[:written] == datas[0][:written]
            late = [pool.submit(unpacking.wait_for, 0, 5 * MB, 14 * MB)]
            late.append(pool.submit(unpacking.wait_for, 1, 0, 1))
            assert not any(one.done() for one in late)
        finally:
            for sink in sinks:
                sink.opened.set()
        assert late[0].result(_WAIT_SECONDS) == len(datas[0])
        assert 1 <= late[1].result(_WAIT_SECONDS) <= len(datas[1])
        done.result(_WAIT_SECONDS)
    assert [bytes(sink.data) for sink in sinks] == datas
    assert unpacking.wait_for(1, 0, len(datas[1])) == len(datas[1])


@pytest.mark.parametrize("by_stream", [True, False])
def test_nothing_is_reported_that_is_not_written(store, streams, datas, by_stream):
    """Whatever the order of the runs is: chunks of a run may be far from each other."""
    sinks = [Gated(len(data), 0) for data in datas]
    for sink in sinks:
        sink.opened.set()
    jobs = list(zip(streams, sinks, strict=True))
    unpacking = Unpacking(jobs, store, threads=2, by_stream=by_stream)

    def follow(number):
        at = 0
        while at < len(datas[number]):
            written = unpacking.wait_for(number, at, at + 1)
            assert sinks[number].data[:written] == datas[number][:written]
            at = written

    with ThreadPoolExecutor() as pool:
        following = [pool.submit(follow, number) for number in range(2)]
        unpacking.run(Progress())
        for one in following:
            one.result(_WAIT_SECONDS)


@pytest.mark.usefixtures("workers")
def test_processes_report_what_they_have_written(store, streams, datas):
    paths = [Path(f"/dev/shm/gpuckpt-test-{os.getpid()}-{number}") for number in range(2)]
    try:
        jobs = [(stream, FileSink(path)) for stream, path in zip(streams, paths, strict=True)]
        unpacking = Unpacking(jobs, store, threads=4, by_stream=True)
        assert unpacking._processes is not None

        def follow(number):
            at, steps = 0, 0
            while at < len(datas[number]):
                at = unpacking.wait_for(number, at, at + 1)
                assert paths[number].read_bytes()[:at] == datas[number][:at]
                steps += 1
            return steps

        with ThreadPoolExecutor() as pool:
            following = [pool.submit(follow, number) for number in range(2)]
            unpacking.run(Progress())
            assert all(one.result(_WAIT_SECONDS) for one in following)
    finally:
        for path in paths:
            path.unlink()


def test_who_waits_gets_the_error_that_ended_it(store, streams, datas):
    path = max((store.root / "packs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    entry = read_index(path)[-1]
    data = bytearray(path.read_bytes())
    data[entry.offset + 7] ^= 1
    path.write_bytes(data)
    sinks = [Gated(len(data), 0) for data in datas]
    for sink in sinks:
        sink.opened.set()
    jobs = list(zip(streams, sinks, strict=True))
    unpacking = Unpacking(jobs, store, threads=2, by_stream=True)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(unpacking.wait_for, n, 0, len(datas[n])) for n in range(2)]
        with pytest.raises(ObjectCorrupt):
            unpacking.run(Progress())
        with pytest.raises(ObjectCorrupt):
            waiting[0].result(_WAIT_SECONDS)
    with pytest.raises(ObjectCorrupt):
        unpacking.wait_for(0, 0, 1)
