"""Suspends and resumes of GPU memory for which RAM is short: window by window, so that one window of RAM is enough."""

from __future__ import annotations

import os
import random
import threading

import pytest

from jupyter_gpuckpt.engine import preflight, recovery
from jupyter_gpuckpt.engine.gpu import gpu_processes, restore
from jupyter_gpuckpt.engine.gpu.ferry import ferry_copies, ferry_fills, ferry_windows
from jupyter_gpuckpt.engine.gpu.ferry.ferry import Ferry
from jupyter_gpuckpt.engine.gpu.ferry.ferry_orders import Allocation
from jupyter_gpuckpt.engine.gpu.gpu_processes import DIRECTORY
from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.errors import (
    FreezeFailed,
    GpuCkptError,
    ObjectCorrupt,
    OperationCancelled,
    StoreFull,
)
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.images.pack import join
from jupyter_gpuckpt.images.partial import around
from jupyter_gpuckpt.images.unpack import read_stream
from jupyter_gpuckpt.snapshots import gpu_packing, room, save, stored_content
from jupyter_gpuckpt.snapshots.stored_content import StoredContent
from jupyter_gpuckpt.wire.progress import Progress
from tests.engine.scripted_driver import Error
from tests.engine.scripted_gpu import ONE, devices, executable, run, store
from tests.engine.test_ferry_snapshots import (
    CHUNK,
    GB,
    MEMORY,
    MOVING,
    STILL,
    begin_with_ferry,
    changed,
    check_running,
    driver_library,
    ferry_of,
    gpu,
    killed_in_a_save,
    let_be_free,
    memory_of,
    resumed,
    tables,
    with_still_memory,
)
from tests.parameters import some_slow

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

#: Windows of this length, which is not that of any part.
WINDOW = 6 << 20


class Short:
    """RAM that is short for a copy of all memory. `lengths`: of the files that were made for windows."""

    def __init__(self, monkeypatch):
        self.lengths = []
        monkeypatch.setattr(ferry_windows, "WINDOW_BYTES", WINDOW)
        monkeypatch.setattr(ferry_windows, "mem_available", lambda pid=None: 2 * WINDOW)
        monkeypatch.setattr(ferry_windows, "_SPARE_BYTES", WINDOW)
        striped, opened = ferry_copies.striped, stored_content.WindowSink

        def noting(tree, pid, file):
            self.lengths.append(file.length)
            return striped(tree, pid, file)

        def open_window(target, begin, end):
            self.lengths.append(end - begin)
            return opened(target, begin, end)

        monkeypatch.setattr(ferry_copies, "striped", noting)
        monkeypatch.setattr(stored_content, "WindowSink", open_window)


@pytest.fixture
def short(gpu, monkeypatch):
    return Short(monkeypatch)


def test_one_window_of_ram_is_enough_for_a_suspend_and_a_resume(gpu, short):
    largest, length = max(one.bytes for one in listed(gpu)), MEMORY + (1 << 20)
    saved = gpu.program.save(stop=True)
    assert max(short.lengths) <= WINDOW
    assert sum(short.lengths) >= length
    short.lengths.clear()
    resumed(gpu, saved, gpu.driver.memory())
    # A part is filled at once: of real memory it is not larger than a window.
    assert max(short.lengths) <= max(WINDOW, largest)
    assert sum(short.lengths) == length
    check_running(gpu)


@pytest.mark.slow
def test_of_memory_of_which_something_changed_only_that_is_in_windows(
    with_still_memory, gpu, short
):
    saved = gpu.program.save(stop=True)
    assert len(memory_of(gpu, saved)) == STILL + MOVING
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)
    changed(gpu, 10 << 20, 7 << 20)
    read = len(short.lengths)
    again = gpu.program.save(stop=True)
    assert sum(short.lengths[read:]) < MOVING + (7 << 20) + 4 * CHUNK
    assert len(tables(again)) == 1
    resumed(gpu, again, gpu.driver.memory())
    check_running(gpu)


def listed(gpu):
    ferry = ferry_of(gpu)
    ferry.close_gate(30)
    try:
        return ferry.allocations()
    finally:
        ferry.open_gate()


@pytest.mark.slow
def test_the_windows_are_the_same_chunks_as_the_whole(with_still_memory, gpu, monkeypatch):
    first = gpu.program.save()
    with monkeypatch.context() as patched:
        Short(patched)
        # Without the earlier table everything is read again.
        patched.setattr(gpu_packing.gpu_tables, "_parsed", lambda data, memory: None)
        saved = gpu.program.save(stop=True)
    assert memory_of(gpu, saved)[-STILL:] == memory_of(gpu, first)[-STILL:]
    assert saved.manifest.info.sizes.new_bytes < MOVING + STILL / 4
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)


def test_a_save_and_memory_for_which_there_is_room_need_no_windows(gpu, monkeypatch):
    stored = []
    monkeypatch.setattr(gpu_packing.GpuPacking, "store_window", lambda *given: stored.append(given))
    with monkeypatch.context() as patched:
        Short(patched)
        # What a save copies before the hand-over is the same memory, but the kernel waits for it.
        let_be_free(gpu, "parts", patched)
        gpu.program.save()
        check_running(gpu)
    saved = gpu.program.save(stop=True)
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)
    assert not stored


def test_memory_that_must_leave_the_gpu_is_refused_where_ram_is_short(gpu, short, monkeypatch):
    gpu.nvml.others[ONE] = (10 << 30) - 3 * GB
    monkeypatch.setattr(ferry_copies, "mem_available", lambda pid: MEMORY - 1)
    with pytest.raises(GpuCkptError, match="no room in memory"):
        gpu.program.save(stop=True)
    check_running(gpu)


#: What a plan takes for the shared memory of each process.
SHARED = 1 << 20


class Rule:
    """The rule by which a suspend counts RAM. `chosen`: the plan, made where there was enough."""

    def __init__(self, gpu, monkeypatch):
        self._gpu, self._patch, self.asked = gpu, monkeypatch.setattr, []
        self._patch(processes, "resident_bytes", lambda pid, kinds: SHARED)
        self._patch(ferry_windows, "WINDOW_BYTES", WINDOW)
        self._patch(ferry_windows, "_SPARE_BYTES", 2 * WINDOW)
        self.chosen = self.planned(1 << 50)

    def planned(self, available, by_windows=0, gpu_bytes=20 * WINDOW):
        """Make a plan where so many bytes are available."""
        self._patch(processes, "mem_available", lambda pid=None: available)
        self._patch(
            ferry_windows, "usable_bytes", lambda tree: self.asked.append(available) or by_windows
        )
        return preflight.plan(
            self._gpu.program.tree,
            self._gpu.program.engine,
            private_shm=True,
            stop=True,
            gpu_bytes=gpu_bytes,
        )


def test_a_plan_counts_windows_only_where_ram_is_short_and_they_can_be_used(gpu, monkeypatch):
    rule = Rule(gpu, monkeypatch)
    beside = rule.chosen.ram_needs.beside_bytes
    members = len(launch.pids(gpu.program.tree))
    assert beside == members * SHARED + gpu.program.engine.headroom_bytes
    assert rule.chosen.ram_needs.gpu_bytes == 20 * WINDOW
    # As much as for a whole copy is there.
    rule.planned(beside + 20 * WINDOW)
    assert not rule.asked
    # Windows are not possible.
    with pytest.raises(FreezeFailed, match="not enough memory"):
        rule.planned(beside + 20 * WINDOW - 1)
    assert rule.asked
    # They are for all of it, of which one at a time and what packing takes must fit.
    rule.planned(beside + 3 * WINDOW, by_windows=20 * WINDOW)
    with pytest.raises(FreezeFailed, match="not enough memory"):
        rule.planned(beside + 3 * WINDOW - 1, by_windows=20 * WINDOW)
    # The rest of it goes the driver's way, or must leave its GPU.
    rule.planned(beside + 13 * WINDOW, by_windows=10 * WINDOW)
    with pytest.raises(FreezeFailed, match="not enough memory"):
        rule.planned(beside + 13 * WINDOW - 1, by_windows=10 * WINDOW)
    # Windows do not help memory that is not larger than what they take.
    with pytest.raises(FreezeFailed, match="not enough memory"):
        rule.planned(beside + 20 * WINDOW - 1, by_windows=3 * WINDOW)


def test_windows_can_be_used_for_memory_that_the_gpu_has_room_to_give_back(gpu):
    assert ferry_windows.usable_bytes(gpu.program.tree) == MEMORY + (1 << 20)
    gpu.park()
    assert ferry_windows.usable_bytes(gpu.program.tree) == 0
    gpu.unpark()
    gpu.nvml.others[ONE] = (10 << 30) - 3 * GB
    assert ferry_windows.usable_bytes(gpu.program.tree) == 0


def counted(gpu, monkeypatch):
    """Let suspends note their plans and windows; return both lists."""
    plans, windows = [], []
    original, store = save.plan, gpu_packing.GpuPacking.store_window

    def planning(*given, **options):
        plans.append(original(*given, **options))
        return plans[-1]

    def storing(self, *given):
        windows.append(given)
        store(self, *given)

    monkeypatch.setattr(save, "plan", planning)
    monkeypatch.setattr(gpu_packing.GpuPacking, "store_window", storing)
    return plans, windows


@pytest.mark.parametrize("missing", some_slow([0, 1], {1}))
def test_a_copy_leaves_the_ram_that_the_suspend_needs_besides(gpu, monkeypatch, missing):
    """All GPU memory needs RAM, also what is not the ferry's, and so does what CRIU copies."""
    plans, windows = counted(gpu, monkeypatch)
    spare = ferry_windows._SPARE_BYTES
    monkeypatch.setattr(
        ferry_windows,
        "mem_available",
        lambda pid=None: plans[-1].ram_needs.most_bytes + spare - missing,
    )
    saved = gpu.program.save(stop=True)
    assert plans[-1].ram_needs.gpu_bytes == 2 * GB
    assert plans[-1].ram_needs.beside_bytes > gpu.program.engine.headroom_bytes
    assert bool(windows) == bool(missing)
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)


@pytest.mark.parametrize("room", some_slow(["none", "windows"], {"windows"}))
def test_files_are_refused_that_would_take_the_ram_that_the_suspend_needs_besides(
    gpu, short, monkeypatch, room
):
    plans, _ = counted(gpu, monkeypatch)
    missing = [1]

    def available(pid):
        if room == "none":
            return plans[-1].ram_needs.most_bytes - missing[0]
        return WINDOW + plans[-1].ram_needs.beside_bytes - missing[0]

    if room == "none":  # then all of the memory leaves the GPU
        gpu.nvml.others[ONE] = (10 << 30) - 3 * GB
        monkeypatch.setattr(ferry_windows, "_SPARE_BYTES", 2 * GB)
    monkeypatch.setattr(ferry_copies, "mem_available", available)
    with pytest.raises(GpuCkptError, match="no room in memory"):
        gpu.program.save(stop=True)
    check_running(gpu)
    missing[0] = 0
    saved = gpu.program.save(stop=True)
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)


def test_what_is_copied_while_the_tasks_run_needs_ram_for_itself_only(gpu, monkeypatch):
    monkeypatch.setattr(ferry_copies, "mem_available", lambda pid: MEMORY + (1 << 20))
    gpu.program.save()
    check_running(gpu)


def fail_in_window(monkeypatch, number, failing):
    """Let storing fail at a window of this number."""
    original, seen = gpu_packing.pack, []

    def packing(sources, *given, **options):
        if "ferry-" in sources[0].name and not sources[0].name.startswith("digests/"):
            seen.append(sources)
            if len(seen) > number:
                failing()
        return original(sources, *given, **options)

    monkeypatch.setattr(gpu_packing, "pack", packing)


@pytest.mark.parametrize("number", some_slow([0, 2], {2}))
def test_a_store_that_fails_at_a_window_costs_nothing(gpu, short, monkeypatch, number):
    def failing():
        raise StoreFull("the disk is full", hint="")

    store = gpu.program.store
    monkeypatch.setattr(store, "_pack_bytes", 1 << 20)
    with monkeypatch.context() as patched:
        fail_in_window(patched, number, failing)
        with pytest.raises(StoreFull):
            gpu.program.save(stop=True)
    assert files_of(gpu) == []
    check_running(gpu)
    # What the windows before it have stored does not fill the disk until a pin expires.
    assert not store._in_use._pins
    assert not packs(store)
    saved = gpu.program.save(stop=True)
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)


def test_a_suspend_that_is_cancelled_at_a_window_costs_nothing(gpu, short, monkeypatch):
    progress, store = Progress(), gpu.program.store
    with monkeypatch.context() as patched:
        fail_in_window(patched, 1, progress.cancel)
        with pytest.raises(OperationCancelled):
            gpu.program.save(stop=True, progress=progress)
    check_running(gpu)
    assert packs(store)
    assert not store._in_use._pins
    store.sweep()
    assert not packs(store)


def files_of(gpu):
    """Return the files with GPU memory on scratch."""
    return [path.name for path in gpu.program.tree.inside(DIRECTORY).glob("*")]


def packs(store):
    """Return the files with chunks, complete or not."""
    return [path for path in store._packs.rglob("*") if path.is_file()]


@pytest.mark.parametrize("step", ["Lock", "Checkpoint"])
def test_a_driver_that_refuses_after_the_windows_costs_nothing(gpu, short, step):
    gpu.fail(step, 0, Error.CUDA_ERROR_NOT_SUPPORTED)
    with pytest.raises(GpuCkptError):
        gpu.program.save(stop=True)
    check_running(gpu)
    assert not gpu.program.store._in_use._pins


def test_a_suspend_that_is_refused_when_all_is_stored_releases_it(gpu, short, monkeypatch):
    stored, of_windows = set(), gpu_packing.GpuPacking._of_windows

    def noting(self):
        packed = of_windows(self)
        stored.update(
            part.digest for one in packed.streams for chunk in one.chunks for part in chunk.stored()
        )
        return packed

    def refused(*given):
        raise FreezeFailed("a resume would fail", hint="")

    monkeypatch.setattr(gpu_packing.GpuPacking, "_of_windows", noting)
    monkeypatch.setattr(save, "rehearse", refused)
    with pytest.raises(FreezeFailed, match="a resume would fail"):
        gpu.program.save(stop=True)
    check_running(gpu)
    assert stored
    assert not any(stored & pin.digests for pin in gpu.program.store._in_use._pins)


@pytest.mark.parametrize(
    ("number", "step"),
    [
        (1, None),
        pytest.param(0, None, marks=pytest.mark.slow),
        pytest.param(3, None, marks=pytest.mark.slow),
        (None, "hand_over"),
    ],
)
def test_a_daemon_that_is_killed_at_a_window_loses_nothing(gpu, short, monkeypatch, number, step):
    with monkeypatch.context() as patched:
        if number is not None:
            fail_in_window(patched, number, lambda: os._exit(9))
        killed_in_a_save(gpu, patched, step, before=False, stop=True)
    recovery.recover(gpu.program.tree)
    assert files_of(gpu) == []
    check_running(gpu)
    saved = gpu.program.save(stop=True)
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)


def test_a_window_of_a_killed_daemon_is_removed_although_another_process_cannot_be_recovered(
    gpu, short, monkeypatch
):
    with monkeypatch.context() as patched:
        fail_in_window(patched, 1, lambda: os._exit(9))
        killed_in_a_save(gpu, patched, None, before=False, stop=True)
    assert files_of(gpu)

    def failing(pid, **options):
        raise FreezeFailed("a process keeps a file open", hint="")

    with monkeypatch.context() as patched:
        patched.setattr(gpu_processes.release, "release", failing)
        recovery.recover(gpu.program.tree)
    assert files_of(gpu) == []
    check_running(gpu)


def test_a_file_with_the_only_copy_of_memory_is_kept_until_it_is_given_back(gpu, monkeypatch):
    def failing(self, *given, **options):
        raise FreezeFailed("there is no room", hint="")

    let_be_free(gpu, "none", monkeypatch)
    with monkeypatch.context() as patched:
        killed_in_a_save(gpu, patched, "free", before=False)
        patched.setattr(Ferry, "_give_back", failing)
        recovery.recover(gpu.program.tree)
    assert any(name.startswith("ferry-") for name in files_of(gpu))
    recovery.recover(gpu.program.tree)
    assert files_of(gpu) == []
    check_running(gpu)


@pytest.mark.slow
def test_digests_that_are_wrong_let_all_windows_be_stored(with_still_memory, gpu, monkeypatch):
    gpu.program.save()
    short, original = Short(monkeypatch), ferry_copies._check

    def unreliable(*given, **options):
        monkeypatch.setattr(ferry_copies, "_check", original)
        raise ferry_copies.UnreliableDigestsError("a digest is not that of the memory")

    monkeypatch.setattr(ferry_copies, "_check", unreliable)
    saved = gpu.program.save(stop=True)
    assert sum(short.lengths) >= STILL + MOVING
    assert tables(saved) == []
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)


@pytest.mark.parametrize("number", some_slow([0, 1], {1}))
def test_a_window_that_cannot_be_read_fails_the_resume_before_any_code_runs(
    gpu, short, monkeypatch, number
):
    saved, memory = gpu.program.save(stop=True), gpu.driver.memory()
    gpu.driver.come_back(memory)
    original, seen = StoredContent.to_window, []

    def reading(self, *given):
        seen.append(given)
        if len(seen) > number:
            raise ObjectCorrupt("a chunk is damaged", hint="")
        original(self, *given)

    ticks = {path: path.read_bytes() for path in gpu.folder.glob("*.ticks")}
    with monkeypatch.context() as patched:
        patched.setattr(StoredContent, "to_window", reading)
        with pytest.raises(GpuCkptError, match="a chunk is damaged"):
            gpu.program.resume(saved.manifest.info.snapshot_id)
    assert {path: path.read_bytes() for path in ticks} == ticks
    resumed(gpu, saved, memory)
    check_running(gpu)


def test_threads_are_held_as_long_as_windows_are_read(gpu, short, monkeypatch):
    """Reading takes longer than the time after which a ferry is taken for one that waits for a held thread."""
    saved, memory = gpu.program.save(stop=True), gpu.driver.memory()
    gpu.driver.come_back(memory)
    monkeypatch.setattr(restore, "_FERRY_SECONDS", 0.2)
    original = StoredContent.to_window
    ticks = {path: path.read_bytes() for path in gpu.folder.glob("*.ticks")}
    seen = []

    def reading(self, *given):
        threading.Event().wait(0.8)
        seen.append({path: path.read_bytes() for path in ticks} == ticks)
        original(self, *given)

    monkeypatch.setattr(StoredContent, "to_window", reading)
    resumed(gpu, saved, memory)
    assert seen
    assert all(seen)
    check_running(gpu)


def test_what_is_needed_of_ram_counts_one_window(gpu, short, monkeypatch):
    saved = gpu.program.save(stop=True)
    manifest, needed = saved.manifest, room.max_memory_bytes(saved.manifest)
    spare = MEMORY + (1 << 20) - WINDOW - ferry_windows._SPARE_BYTES
    assert spare > 0
    for missing, is_short in ((spare, False), (spare + 1, True)):
        monkeypatch.setattr(room.processes, "mem_available", lambda free=needed - missing: free)
        assert bool(room.memory_shortage(manifest, gpu.program.store)) == is_short
    # What forked processes share is counted once.
    needed += ferry_windows._SPARE_BYTES - (3 << 20)
    for free, is_short in ((needed, False), (needed - 1, True)):
        monkeypatch.setattr(ferry_windows, "mem_available", lambda free=free: free)
        assert ferry_windows.is_short_for(manifest, 3 << 20) == is_short


def test_windows_with_zeros_anywhere_are_joined_to_the_whole(store, engine, tmp_path, monkeypatch):
    """Zeros at the ends of windows are one chunk with what lies around them."""
    chosen, path, length = random.Random(5), tmp_path / "window", 24 << 20
    block = 1 << 18
    data = b"".join(
        bytes(block) if chosen.random() < 0.6 else chosen.randbytes(block)
        for _ in range(length // block)
    )
    for _ in range(4):
        places = sorted(chosen.sample(range(length // (64 << 10)), 10))
        ranges = [
            (a * (64 << 10), b * (64 << 10)) for a, b in zip(places[::2], places[1::2], strict=True)
        ]
        monkeypatch.setattr(ferry_windows, "WINDOW_BYTES", chosen.choice([1, 3, 7]) << 20)
        for wanted in (ranges, None):
            packing = gpu_packing.GpuPacking(store, engine, alone=True)
            for window in ferry_windows.windows(wanted or [(0, length)]):
                path.write_bytes(b"".join(data[begin:end] for begin, end in window))
                packing.store_window(Progress(), "gpu", [path], length, window)
            packing._writer.finish()
            found = packing._windows["gpu"]
            if wanted is None:
                packing._copies["gpu"] = ferry_copies.FerryCopy(None, False, None, True)
                [stream] = packing._of_windows().streams
                assert read_stream(stream, store) == data
            else:
                whole = join("gpu", length, sorted([*around(wanted, length), *found]))
                expected = bytearray(length)
                for begin, end in wanted:
                    expected[begin:end] = data[begin:end]
                assert read_stream(whole, store) == expected


def test_ranges_and_parts_are_divided_into_windows(monkeypatch):
    monkeypatch.setattr(ferry_windows, "WINDOW_BYTES", 10)
    found = list(ferry_windows.windows([(0, 4), (6, 27), (30, 31)]))
    assert found == [[(0, 4), (6, 12)], [(12, 22)], [(22, 27), (30, 31)]]
    parts = [Allocation(0, length, 0, 0, 1) for length in (4, 6, 1, 12, 3)]
    assert list(ferry_fills.groups(parts)) == [(0, 2, 10), (2, 1, 1), (3, 1, 12), (4, 1, 3)]
