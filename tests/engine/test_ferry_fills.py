"""The memory of a resumed ferry is filled while the rest of its file is still written."""

from __future__ import annotations

import threading

import pytest

from jupyter_gpuckpt.engine.gpu import restore
from jupyter_gpuckpt.engine.gpu.ferry import ferry_fills
from jupyter_gpuckpt.engine.gpu.ferry.ferry_orders import Allocation, Library, Order
from jupyter_gpuckpt.errors import GpuCkptError, ObjectCorrupt
from jupyter_gpuckpt.images import reading_order, unpack
from jupyter_gpuckpt.images.sinks import FileSink
from tests.engine.scripted_gpu import devices, executable, run, store
from tests.engine.test_ferry_snapshots import (
    MOVING,
    begin_with_ferry,
    check_running,
    driver_library,
    gpu,
    resumed,
    with_still_memory,
)

__all__ = [
    "begin_with_ferry",
    "devices",
    "driver_library",
    "executable",
    "gpu",
    "run",
    "store",
    "with_still_memory",
]

#: The offset from which writes of the ferry's file wait: in its last part, some chunks after the beginning.
LATE = MOVING + (8 << 20)

pytestmark = pytest.mark.usefixtures("with_still_memory")


def is_late(sink, offset):
    """Return whether a write is a late one into a ferry's file, which has no name; all others have."""
    return offset >= LATE and isinstance(sink._target, int)


class Filling:
    """The fills of a resume: writes of a file from `LATE` on wait for the first one."""

    def __init__(self, monkeypatch) -> None:
        self.fills = list[tuple[int, int]]()
        self.begun = threading.Event()
        self.write, order = FileSink.write, Library.order

        def ordering(library, which, *arguments, **options):
            order(library, which, *arguments, **options)
            if which is Order.FILL:
                self.fills.append(arguments)
                self.begun.set()

        monkeypatch.setattr(Library, "order", ordering)
        monkeypatch.setattr(ferry_fills, "_LEAST_BYTES", 1 << 20)
        # A run is one chunk: the memory is small and compresses well.
        monkeypatch.setattr(unpack, "_SPAN_BYTES", 1)
        monkeypatch.setattr(unpack, "_MIN_SPAN_BYTES", 1)
        monkeypatch.setattr(reading_order, "_MIN_SPAN_BYTES", 1)

    def wait(self) -> None:
        assert self.begun.wait(60), "nothing is filled before all is written"


def test_what_is_written_is_filled_while_the_rest_is_not(gpu, monkeypatch):
    saved, memory = gpu.program.save(stop=True), gpu.driver.memory()
    filling = Filling(monkeypatch)

    def writing(sink, offset, data):
        if is_late(sink, offset):
            filling.wait()
        filling.write(sink, offset, data)

    monkeypatch.setattr(FileSink, "write", writing)
    resumed(gpu, saved, memory)
    assert len(filling.fills) > 1
    firsts = [first for first, _ in filling.fills]
    assert firsts == [0, *(first + count for first, count in filling.fills[:-1])]
    check_running(gpu)


def test_a_chunk_that_is_damaged_after_the_first_fill_fails_the_resume_before_any_code_runs(
    gpu, monkeypatch
):
    saved, memory = gpu.program.save(stop=True), gpu.driver.memory()
    gpu.driver.come_back(memory)
    ticks = {path: path.read_bytes() for path in gpu.folder.glob("*.ticks")}
    with monkeypatch.context() as patched:
        filling = Filling(patched)

        def writing(sink, offset, data):
            if is_late(sink, offset):
                filling.wait()
                raise ObjectCorrupt("a chunk is damaged", hint="")
            filling.write(sink, offset, data)

        patched.setattr(FileSink, "write", writing)
        with pytest.raises(GpuCkptError, match="a chunk is damaged"):
            gpu.program.resume(saved.manifest.info.snapshot_id)
    assert filling.fills
    assert {path: path.read_bytes() for path in ticks} == ticks
    resumed(gpu, saved, memory)
    check_running(gpu)


@pytest.mark.slow
def test_threads_are_held_as_long_as_files_are_written(gpu, monkeypatch):
    """Writing takes longer than the time after which a ferry is taken for one that waits for a held thread."""
    saved, memory = gpu.program.save(stop=True), gpu.driver.memory()
    monkeypatch.setattr(restore, "_FERRY_SECONDS", 0.2)
    ticks = {path: path.read_bytes() for path in gpu.folder.glob("*.ticks")}
    filling, seen = Filling(monkeypatch), []

    def writing(sink, offset, data):
        if is_late(sink, offset):
            filling.wait()
            threading.Event().wait(0.8)
            seen.append({path: path.read_bytes() for path in ticks} == ticks)
        filling.write(sink, offset, data)

    monkeypatch.setattr(FileSink, "write", writing)
    resumed(gpu, saved, memory)
    assert seen
    assert all(seen)
    check_running(gpu)


def test_fills_are_of_whole_parts_of_which_all_is_written(monkeypatch):
    monkeypatch.setattr(ferry_fills, "_LEAST_BYTES", 8)
    lengths, written = (4, 6, 1, 12, 3, 2), iter([9, 10, 24, 99])
    asked, filled = [], []

    class Listing:
        def listed(self):
            return [Allocation(0, length, 0, 0, 1) for length in lengths]

        def order(self, order, first, count, *, offset, descriptors):
            assert descriptors == [9]
            filled.append((first, count, offset))

    def wait_for(stream, begin, end):
        asked.append((begin, end))
        return max(end, next(written))

    ferry_fills.as_written(wait_for, {"gpu": 9}.__getitem__, "gpu", Listing(), None)
    assert asked == [(0, 10), (10, 23), (23, 28)]
    assert filled == [(0, 2, 0), (2, 2, 10), (4, 2, 23)]
    assert sum(lengths) == 28
