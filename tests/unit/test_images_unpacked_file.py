"""Unpacked files: the bytes of streams in memory, which one thread reads for all."""

from __future__ import annotations

import functools
import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from jupyter_gpuckpt.errors import ObjectCorrupt, OperationCancelled
from jupyter_gpuckpt.images.pack import BytesSource, pack
from jupyter_gpuckpt.images.sinks import FileSink
from jupyter_gpuckpt.images.unpacked_file import ReadingError, UnpackedFile
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.progress import Progress
from tests.conftest import wait_for

MB = 1 << 20


@functools.cache
def mixed_bytes() -> bytes:
    """Return bytes with zeros between them and at both ends."""
    random = np.random.default_rng(5)
    parts = random.bytes(3 * MB), bytes(5 * MB), random.bytes(100_000) * 30, bytes(2 * MB)
    return bytes(MB) + b"".join(parts)


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "store", pack_bytes=4 * MB) as store:
        yield store


@pytest.fixture
def streams(store):
    sources = [
        BytesSource("a", mixed_bytes()),
        BytesSource("b", mixed_bytes()[2 * MB :]),
        BytesSource("c", b""),
        BytesSource("d", bytes(3 * MB)),
    ]
    return pack(sources, store, threads=2, progress=Progress()).streams


class Memory:
    """A sink in memory."""

    def __init__(self, length: int) -> None:
        self.data, self.written = bytearray(length), 0

    def write(self, offset: int, data: memoryview) -> None:
        self.data[offset : offset + len(data)] = data
        self.written += len(data)


def copied(file: UnpackedFile, streams) -> list[bytes]:
    """Return what a resume gets of the streams. Its progress must count all of it."""
    sinks, progress = [Memory(stream.length) for stream in streams], Progress()
    file.copy(list(zip(streams, sinks, strict=True)), 2, progress)
    assert progress.record().done_bytes == sum(stream.length for stream in streams)
    assert sum(sink.written for sink in sinks) == file.length
    return [bytes(sink.data) for sink in sinks]


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_streams_come_back_from_one_file_without_zeros(store, streams):
    before = descriptors()
    file = UnpackedFile(streams, store, threads=2)
    expected = [mixed_bytes(), mixed_bytes()[2 * MB :], b"", bytes(3 * MB)]
    assert copied(file, streams) == expected
    assert copied(file, streams) == expected
    assert file.length < sum(map(len, expected)) - 15 * MB
    file.close()
    file.close()
    assert wait_for(lambda: descriptors() == before)


def test_a_whole_file_is_as_its_stream_and_can_only_be_read(store, streams):
    file = UnpackedFile(streams[:1], store, threads=2, whole=True)
    assert file.wait_for(0, file.length, Progress()) == file.length == len(mixed_bytes())
    assert os.pread(file.descriptor, file.length, 0) == mixed_bytes()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(file.descriptor, b"x", 0)
    file.close()


def test_many_copy_at_the_same_time_what_is_read_once(store, streams, monkeypatch):
    written, write = list[int](), FileSink.write

    def writing(sink, offset, data):
        written.append(len(data))
        write(sink, offset, data)

    monkeypatch.setattr(FileSink, "write", writing)
    file, found = UnpackedFile(streams, store, threads=2), list[bool]()

    def check() -> None:
        found.append(copied(file, streams[:2]) == [mixed_bytes(), mixed_bytes()[2 * MB :]])

    threads = [threading.Thread(target=check) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 6
    assert sum(written) == file.length
    file.close()


def damage(store: LocalStore) -> None:
    for pack_path in Path(store.root).rglob("*.pack"):
        content = bytearray(pack_path.read_bytes())
        middle = len(content) // 2
        content[middle : middle + 64] = bytes(64)
        pack_path.write_bytes(content)


def test_damage_is_told_to_all_who_wait(store, streams):
    file = UnpackedFile(streams, store, threads=2)
    damage(store)
    errors = list[BaseException]()

    def check() -> None:
        try:
            copied(file, streams)
        except ReadingError as error:
            errors.append(error.__cause__)

    threads = [threading.Thread(target=check) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(error) for error in errors] == [ObjectCorrupt] * 3
    assert file.has_failed
    file.close()


def test_where_no_thread_can_be_started_nobody_waits(store, streams, monkeypatch):
    file = UnpackedFile(streams, store, threads=2)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", unable)
        with pytest.raises(ReadingError):
            copied(file, streams)
    assert copied(file, streams)[0] == mixed_bytes()
    file.close()


def unable(thread) -> None:
    raise RuntimeError("can't start new thread")


class Held:
    """Holds the writes of the file back until the test lets them go on."""

    def __init__(self, monkeypatch) -> None:
        self.go_on, write = threading.Event(), FileSink.write

        def writing(sink, offset, data):
            assert self.go_on.wait(60)
            write(sink, offset, data)

        monkeypatch.setattr(FileSink, "write", writing)


def test_a_canceled_reader_ends_and_the_others_do_not_notice(store, streams, monkeypatch):
    held = Held(monkeypatch)
    file, canceled = UnpackedFile(streams, store, threads=2), Progress()
    errors = list[BaseException]()

    def check() -> None:
        try:
            file.copy([(streams[0], Memory(streams[0].length))], 1, canceled)
        except OperationCancelled as error:
            errors.append(error)

    first = threading.Thread(target=check)
    first.start()
    canceled.cancel()
    first.join()
    assert len(errors) == 1
    held.go_on.set()
    assert copied(file, streams)[0] == mixed_bytes()
    file.close()


def test_a_closed_file_that_is_still_read_frees_its_memory_soon(store, streams, monkeypatch):
    held, before = Held(monkeypatch), descriptors()
    file = UnpackedFile(streams, store, threads=2)
    file.begin()
    file.close()
    held.go_on.set()
    assert wait_for(lambda: not any(one.name == "unpacking" for one in threading.enumerate()))
    del file
    assert wait_for(lambda: descriptors() == before)
