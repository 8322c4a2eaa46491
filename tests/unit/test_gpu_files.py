"""Tests of when a resume writes the files with GPU memory: the driver's at once, the ferries' beside other memory if that is small."""

from __future__ import annotations

import threading

import msgspec
import pytest

from jupyter_gpuckpt.engine.gpu.ferry.ferry import FERRY_FILES, FILES
from jupyter_gpuckpt.engine.gpu_files import GpuFiles
from jupyter_gpuckpt.errors import ObjectCorrupt, OperationCancelled
from jupyter_gpuckpt.wire.manifest_records import GpuProcess, SnapshotInfo, Stream
from jupyter_gpuckpt.wire.progress import Progress
from tests.conftest import wait_for
from tests.manifests import manifest_of

FERRY, DRIVER = f"{FERRY_FILES}7", f"{FILES}/driver-7"
FERRY_BYTES, DRIVER_BYTES = 1000, 300


class Writing:
    """A stand-in for the writing of the ferries' files, which lasts until it may end or is stopped."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.stopped = (threading.Event() for _ in range(3))
        self.error: BaseException | None = None

    def run(self) -> None:
        self.begun.set()
        wait_for(lambda: self.may_end.is_set() or self.stopped.is_set())
        if self.error is not None:
            raise self.error
        if self.stopped.is_set():
            raise OperationCancelled("stopped")

    def wait_for(self, stream: str, begin: int, end: int) -> int:
        return end

    def stop(self) -> None:
        self.stopped.set()


class Content:
    """A source that records which streams it was asked for."""

    def __init__(self) -> None:
        self.writes, self.asked = Writing(), list[str]()

    def to_file(self, jobs):
        self.asked += [stream for stream, _ in jobs]

    def writing(self, streams):
        self.asked += streams
        return self.writes


@pytest.fixture
def content():
    return Content()


@pytest.fixture
def files(content, tmp_path):
    """Return a function that creates the `GpuFiles` of one process with a file of each kind."""
    streams = [Stream(f"gpu{FERRY}", FERRY_BYTES, []), Stream(f"gpu{DRIVER}", DRIVER_BYTES, [])]
    manifest = msgspec.structs.replace(
        manifest_of(SnapshotInfo("s", "k", 1, "save"), *streams),
        gpu=[GpuProcess(7, [FERRY, DRIVER], FERRY_BYTES + DRIVER_BYTES)],
    )

    def begin(other_bytes: int, *, by_windows: bool = False) -> GpuFiles:
        return GpuFiles(
            manifest,
            content,
            lambda path: tmp_path / path.lstrip("/"),
            Progress(),
            other_bytes=other_bytes,
            by_windows=by_windows,
        )

    return begin


def test_ferries_are_read_beside_little_other_memory(files, content):
    with files(FERRY_BYTES // 2) as begun:
        assert content.writes.begun.wait(60)
        content.writes.may_end.set()
        begun.finish()
    assert content.asked == [f"gpu{DRIVER}", f"gpu{FERRY}"]


def test_ferries_wait_for_more_memory_than_half_of_theirs(files, content):
    with files(FERRY_BYTES // 2 + 1) as begun:
        begun.finish_drivers()
        assert not begun.ferries_may.is_set()
        assert not content.writes.begun.is_set()
        begun.ferries_may.set()
        assert content.writes.begun.wait(60)
        content.writes.may_end.set()
        begun.finish()


def test_a_thaw_that_fails_stops_the_reading(files, content):
    with files(0):
        assert content.writes.begun.wait(60)
    assert content.writes.stopped.is_set()


def test_an_error_of_the_reading_is_raised(files, content):
    content.writes.error = ObjectCorrupt("a chunk is damaged", hint="")
    content.writes.may_end.set()
    with files(0) as begun, pytest.raises(ObjectCorrupt, match="a chunk is damaged"):
        begun.finish()


def test_windows_are_not_written_here(files, content, tmp_path):
    with files(0, by_windows=True) as begun:
        begun.finish_drivers()
        begun.finish()
    assert f"gpu{FERRY}" not in content.asked
    assert (tmp_path / FERRY.lstrip("/")).stat().st_size == FERRY_BYTES
