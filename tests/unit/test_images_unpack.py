"""Unpacking: verified, parallel, into memory and files."""

import functools
import os
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from jupyter_gpuckpt.errors import HostError, ManifestInvalid, ObjectCorrupt, OperationCancelled
from jupyter_gpuckpt.images.pack import BytesSource, pack
from jupyter_gpuckpt.images.unpack import FileSink, StreamReader, Unpacking, read_stream
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.packs import read_index
from jupyter_gpuckpt.wire.chunk_parts import Part, encoded_parts
from jupyter_gpuckpt.wire.manifest_records import Chunk, Stream
from jupyter_gpuckpt.wire.progress import Progress

MB = 1 << 20
RNG = np.random.default_rng(11)


@functools.cache  # a worker that runs none of these tests makes none
def mixed_bytes():
    """Return the same bytes of several kinds at each call."""
    return (
        RNG.bytes(6 * MB)
        + bytes(5 * MB)
        + RNG.normal(size=MB).astype(np.float32).tobytes()
        + RNG.bytes(100_000) * 30
        + bytes(9)
    )


class Memory:
    """A sink that checks what it is told."""

    def __init__(self, length: int) -> None:
        self.data = bytearray(length)
        self.written = 0
        self._lock = threading.Lock()

    def write(self, offset: int, data: memoryview) -> None:
        assert not data.readonly
        assert any(data), "zeros are never written"
        self.data[offset : offset + len(data)] = data
        with self._lock:
            self.written += len(data)


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "store", pack_bytes=4 * MB) as store:
        yield store


@pytest.fixture
def streams(store):
    sources = [
        BytesSource("a", mixed_bytes()),
        BytesSource("b", mixed_bytes()[MB:]),
        BytesSource("c", b""),
    ]
    return pack(sources, store, threads=3, progress=Progress()).streams


@pytest.mark.parametrize("threads", [1, 3, 16])
def test_streams_come_back_together(store, streams, threads):
    sinks = [Memory(stream.length) for stream in streams]
    progress = Progress()
    with progress.stage("read"):
        jobs = list(zip(streams, sinks, strict=True))
        Unpacking(jobs, store, threads=threads).run(progress)
        assert progress.record().done_bytes == sum(stream.length for stream in streams)
    assert [bytes(sink.data) for sink in sinks] == [mixed_bytes(), mixed_bytes()[MB:], b""]
    assert sinks[0].written <= len(mixed_bytes()) - 5 * MB + 4096


@pytest.mark.parametrize("where", ["disk", "tmpfs"])
@pytest.mark.parametrize("by", ["path", "descriptor"])
def test_a_file_gets_the_stream(store, streams, tmp_path, where, by):
    path = tmp_path / "file" if where == "disk" else Path(f"/dev/shm/gpuckpt-test-{os.getpid()}")
    path.write_bytes(b"what was here before" * 1000)
    descriptor = os.open(path, os.O_RDWR)
    try:
        sink = FileSink(path if by == "path" else descriptor)
        Unpacking([(streams[0], sink)], store, threads=3).run(Progress())
        assert path.read_bytes() == mixed_bytes()
        # Allocated: nothing that writes to it later finds the disk full.
        assert os.fstat(descriptor).st_blocks * 512 >= len(mixed_bytes())
        del sink
        os.fstat(descriptor)
    finally:
        os.close(descriptor)
        path.unlink()


def test_an_empty_stream_makes_an_empty_file(store, streams, tmp_path):
    Unpacking([(streams[2], FileSink(tmp_path / "file"))], store, threads=3).run(Progress())
    assert (tmp_path / "file").read_bytes() == b""
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_a_file_system_without_room_is_said_first(store, streams, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "gpuckpt-test", disk]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    try:
        with pytest.raises(HostError, match=r"no room for [\d,]+ bytes"):
            Unpacking([(streams[0], FileSink(disk / "f"))], store, threads=2).run(Progress())
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.parametrize("place", [0.0, 0.1, 0.3, 0.5, 0.7, 0.99])
@pytest.mark.parametrize("pack_number", [0, 1])
def test_an_altered_pack_is_refused_and_named(store, streams, pack_number, place):
    path = sorted((store.root / "packs").iterdir())[pack_number]
    entries = read_index(path)
    entry = entries[int(place * len(entries))]
    data = bytearray(path.read_bytes())
    data[entry.offset + int(place * entry.stored_length)] ^= 1
    path.write_bytes(data)
    sinks = [Memory(stream.length) for stream in streams]
    with pytest.raises(ObjectCorrupt, match=rf"Chunk [0-9a-f]{{16}} in pack {path.name}"):
        Unpacking(list(zip(streams, sinks, strict=True)), store, threads=3).run(Progress())


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_a_truncated_pack_is_refused_and_named(store, streams, part):
    path = min((store.root / "packs").iterdir())
    os.truncate(path, int(path.stat().st_size * part))
    sink = Memory(streams[0].length)
    with pytest.raises(ObjectCorrupt, match=path.name):
        Unpacking([(streams[0], sink)], store, threads=3).run(Progress())


def test_a_pack_that_is_gone_is_refused_and_named(store, streams):
    path = min((store.root / "packs").iterdir())
    path.unlink()
    with pytest.raises(ObjectCorrupt, match=path.name):
        Unpacking([(streams[0], Memory(streams[0].length))], store, threads=3).run(Progress())


def test_a_chunk_that_is_nowhere_is_said(store):
    stream = Stream("a", 5, [Chunk(b"\7" * 32, 5)])
    with pytest.raises(ObjectCorrupt, match="0707070707070707"):
        Unpacking([(stream, Memory(5))], store, threads=3).run(Progress())


def test_a_stream_that_contradicts_itself_is_refused(store, streams):
    wrong = Stream("a", streams[0].length + 1, streams[0].chunks)
    with pytest.raises(ManifestInvalid, match="a have"):
        Unpacking([(wrong, Memory(wrong.length))], store, threads=3).run(Progress())
    first = streams[0].chunks[0]
    wrong = Stream("a", first.length + 1, [Chunk(first.digest, first.length + 1)])
    with pytest.raises(ManifestInvalid, match=first.digest.hex()[:16]):
        Unpacking([(wrong, Memory(wrong.length))], store, threads=3).run(Progress())


def test_an_error_of_a_sink_stops_all(store, streams):
    class Failing(Memory):
        def write(self, offset: int, data: memoryview) -> None:
            raise ZeroDivisionError

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        Unpacking([(streams[0], Failing(1))], store, threads=4).run(Progress())
    assert threading.active_count() == before


def test_unpacking_can_be_cancelled(store, streams):
    progress = Progress()

    class Cancelling(Memory):
        def write(self, offset: int, data: memoryview) -> None:
            progress.cancel()

    with pytest.raises(OperationCancelled):
        Unpacking([(streams[0], Cancelling(1))], store, threads=2).run(progress)


def test_unpacking_can_be_stopped(store, streams):
    class Stopping(Memory):
        def write(self, offset: int, data: memoryview) -> None:
            begun.stop()

    begun = Unpacking([(streams[0], Stopping(1))], store, threads=2)
    with pytest.raises(OperationCancelled):
        begun.run(Progress())


def test_a_reader_reads_at_any_place(store, streams):
    reader = StreamReader(streams[0], store)
    end = len(mixed_bytes())
    places = [0, 1, 4095, 6 * MB - 1, 6 * MB, 8 * MB, 11 * MB - 5, end - 10, end - 1, end, end + 5]
    for offset in [*places, *RNG.integers(0, end, 100).tolist()]:
        for length in (0, 1, 4096, 300_000):
            assert reader.read(offset, length) == mixed_bytes()[offset : offset + length]
    assert read_stream(streams[0], store) == mixed_bytes()
    assert read_stream(streams[2], store) == b""
    assert StreamReader(streams[2], store).read(0, 10) == b""


def test_a_reader_verifies(store, streams):
    path = min((store.root / "packs").iterdir())
    data = bytearray(path.read_bytes())
    for offset in range(100, len(data) - 5000, 4096):
        data[offset] ^= 1
    path.write_bytes(data)
    with pytest.raises(ObjectCorrupt, match=path.name):
        read_stream(streams[0], store)


def test_a_chunk_that_is_everywhere_is_written_everywhere(store):
    page = RNG.bytes(4096)
    data = page * 60_000 + bytes(MB) + page * 5
    (stream,) = pack([BytesSource("a", data)], store, threads=3, progress=Progress()).streams
    sink = Memory(stream.length)
    Unpacking([(stream, sink)], store, threads=3).run(Progress())
    assert sink.data == data
    assert sink.written == len(data) - MB


def test_parts_that_their_chunks_do_not_have_are_refused(store, streams):
    first = streams[0].chunks[0]
    for part in (Part(first.digest, 1, first.length), Part(first.digest, first.length, 1)):
        wrong = Stream("a", part.length, [Chunk(b"\1" * 32, part.length, encoded_parts([part]))])
        with pytest.raises(ManifestInvalid):
            read_stream(wrong, store)
        with pytest.raises(ManifestInvalid):
            Unpacking([(wrong, Memory(part.length))], store, threads=1).run(Progress())
