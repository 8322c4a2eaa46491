"""Saves, suspends and resumes of several processes with GPU memory, and what is left when the driver fails one; a scripted driver.

CRIU, the store, the trees and the staging files are real.
"""

from __future__ import annotations

import threading

import pytest

from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.errors import (
    FreezeFailed,
    GpuCkptError,
    HostIncompatible,
    OperationCancelled,
    StoreFull,
    ThawFailed,
)
from jupyter_gpuckpt.host import privileges, processes
from jupyter_gpuckpt.images.pack import pack
from jupyter_gpuckpt.snapshots import gpu_packing
from jupyter_gpuckpt.wire.progress import Progress
from tests.conftest import processes_naming
from tests.engine.scripted_driver import CHECKPOINTED, Error
from tests.engine.scripted_gpu import (
    LENGTH,
    ONE,
    OTHER,
    devices,
    executable,
    extras,
    run,
    scripted,
    store,
)
from tests.parameters import some_slow

__all__ = ["devices", "executable", "extras", "run", "scripted", "store"]

GB = 1 << 30
EACH = pytest.mark.parametrize("which", [0, 1, 2], ids=["first", "second", "third"])
#: In the middle, some have done the step and some have not.
SOME = pytest.mark.parametrize("which", some_slow([0, 1, 2], {1}), ids=["first", "second", "third"])
AROUND_A_SAVE = ["Lock", "Checkpoint", "Restore", "Unlock"]


def suspended(scripted):
    """Its snapshot, and what the driver's part of it is."""
    saved = scripted.program.save(stop=True)
    return saved.manifest.info.snapshot_id, scripted.driver.memory()


def test_a_suspend_and_a_resume_twice_and_no_code_runs_before_the_gpu_is_back(scripted):
    for generation in (1, 2):
        scripted.nvml.used[ONE] = dict.fromkeys(scripted.pids(), GB)
        old = scripted.pids()
        snapshot_id, memory = suspended(scripted)
        assert set(memory.states.values()) == {CHECKPOINTED}
        assert not any(map(processes.exists, old))
        for number in scripted.numbers():
            assert scripted.done(number)[-2:] == ["Lock", "Checkpoint"]
        scripted.program.resume(snapshot_id)
        for number in scripted.numbers():
            assert scripted.done(number) == generation * AROUND_A_SAVE
        assert scripted.driver.ticks_in_restore[-3:] == [0, 0, 0]
        assert set(scripted.nvml.used[ONE]) == set(scripted.pids())
        scripted.check_running()


def test_processes_that_only_began_with_cuda_are_suspended_on_a_machine_with_two_gpus(
    scripted, monkeypatch
):
    """As PyTorch's compile workers: they see all GPUs, and the driver lists no context of theirs."""
    monkeypatch.setattr(privileges, "sees_whole_machine", lambda: True)
    scripted.nvml.add(OTHER)
    scripted.nvml.used[ONE] = {scripted.pids()[0]: GB}
    snapshot_id, _ = suspended(scripted)
    scripted.program.resume(snapshot_id)
    for number in scripted.numbers():
        assert scripted.done(number) == AROUND_A_SAVE
    assert scripted.nvml.used == {ONE: {scripted.pids()[0]: GB}, OTHER: {}}
    scripted.check_running()


@pytest.mark.parametrize("extras", [("thread-with-host-memory",)])
def test_no_thread_meets_the_memory_that_the_driver_has_unmapped(scripted):
    """A thread that shares memory with the GPU would die of it, and the kernel with it."""
    pids = scripted.pids()
    for _ in range(3):
        scripted.program.save()
        scripted.check_running()
    assert scripted.pids() == pids
    snapshot_id, _ = suspended(scripted)
    scripted.program.resume(snapshot_id)
    scripted.check_running()
    scripted.fail("Checkpoint", 1, Error.CUDA_ERROR_NOT_SUPPORTED, once=True)
    with pytest.raises(FreezeFailed):
        scripted.program.save(stop=True)
    scripted.check_running()


def test_a_save_goes_on_and_its_snapshot_is_of_its_moment(scripted):
    saved = scripted.program.save()
    assert all(scripted.done(number) == AROUND_A_SAVE for number in scripted.numbers())
    memory = dict.fromkeys(scripted.numbers(), CHECKPOINTED)
    records = saved.manifest.gpu
    assert {record.pid for record in records} == scripted.numbers()
    assert [len(record.staging) for record in records] == [1, 1, 1]
    assert {record.memory_bytes for record in records} == {LENGTH}
    scripted.check_running()
    launch.kill(scripted.program.tree)
    scripted.driver.come_back(scripted.driver.memory()._replace(states=memory))
    scripted.program.resume(saved.manifest.info.snapshot_id)
    scripted.check_running()


@pytest.fixture
def beside(scripted, monkeypatch):
    """Call what it is told when GPU memory is being stored; the driver gives none back before."""
    called = threading.Event()
    restore = scripted.driver.cuCheckpointProcessRestore
    told = []

    def when_it_is_stored(pid, arguments):
        assert called.wait(120)
        return restore(pid, arguments)

    def storing(sources, *args, **kwargs):
        assert {source.length for source in sources} == {LENGTH}
        called.set()
        for tell in told:
            tell()
        return pack(sources, *args, **kwargs)

    monkeypatch.setattr(scripted.driver, "cuCheckpointProcessRestore", when_it_is_stored)
    monkeypatch.setattr(gpu_packing, "pack", storing)
    return told.append


def test_gpu_memory_is_stored_while_it_goes_back(scripted, beside):
    progress = Progress()
    saved = scripted.program.save(progress=progress)
    scripted.check_running()
    streams = [stream for stream in saved.manifest.streams if stream.name.startswith("gpu/")]
    assert len(streams) == len(scripted.pids())
    scripted.program.store.verify(saved.manifest.info.snapshot_id)
    sizes = saved.manifest.info.sizes
    assert sizes.raw_bytes == sum(stream.length for stream in saved.manifest.streams)


def test_a_store_that_fails_meanwhile_fails_the_save_and_costs_nothing(scripted, beside):
    def full():
        raise StoreFull("The disk is full.")

    beside(full)
    with pytest.raises(StoreFull):
        scripted.program.save()
    assert all(scripted.done(number) == AROUND_A_SAVE for number in scripted.numbers())
    scripted.check_running()
    assert scripted.program.store.snapshots() == []


def test_a_save_that_is_cancelled_meanwhile_ends_and_costs_nothing(scripted, beside):
    progress = Progress()
    beside(progress.cancel)
    with pytest.raises(OperationCancelled):
        scripted.program.save(progress=progress)
    scripted.check_running()
    assert scripted.program.store.snapshots() == []
    assert "gpu-packing" not in [thread.name for thread in threading.enumerate()]


@SOME
@pytest.mark.parametrize("step", ["Lock", "Checkpoint"])
@pytest.mark.parametrize("stop", [False, True], ids=["save", "suspend"])
def test_a_save_that_the_driver_refuses_leaves_all_of_them_running(scripted, which, step, stop):
    refused = scripted.fail(step, which, Error.CUDA_ERROR_NOT_SUPPORTED)
    with pytest.raises(FreezeFailed, match="CUDA_ERROR_NOT_SUPPORTED") as caught:
        scripted.program.save(stop=stop)
    assert "complete" not in caught.value.hint
    assert "Restore" not in scripted.done(refused)
    scripted.check_running()
    assert scripted.program.store.snapshots() == []


@SOME
@pytest.mark.parametrize("step", ["Restore", "Unlock"])
def test_a_resume_that_the_driver_fails_leaves_nothing_and_the_next_one_works(
    scripted, which, step
):
    snapshot_id, memory = suspended(scripted)
    scripted.driver.failures[step, sorted(scripted.numbers())[which]] = (
        Error.CUDA_ERROR_UNKNOWN,
        None,
    )
    with pytest.raises(GpuCkptError, match="CUDA_ERROR_UNKNOWN"):
        scripted.program.resume(snapshot_id)
    assert processes_naming(scripted.folder) == []
    scripted.driver.failures.clear()
    scripted.driver.come_back(memory)
    scripted.program.resume(snapshot_id)
    scripted.check_running()


def test_one_that_a_save_cannot_give_back_waits_for_the_next(scripted):
    stays = scripted.fail("Restore", 1, Error.CUDA_ERROR_UNKNOWN)
    with pytest.raises(GpuCkptError, match="restore") as caught:
        scripted.program.save()
    for number in scripted.numbers() - {stays}:
        assert scripted.done(number) == AROUND_A_SAVE
    # Once before the snapshot is written, once after.
    assert scripted.done(stays) == ["Lock", "Checkpoint", "Restore", "Restore"]
    assert scripted.driver.states[stays] == CHECKPOINTED
    (snapshot,) = scripted.program.store.snapshots()
    assert caught.value.hint.endswith(f" The snapshot {snapshot.snapshot_id} is complete.")
    scripted.driver.failures.clear()
    scripted.program.save()
    scripted.check_running()


def test_a_resume_goes_to_the_gpu_that_has_room_and_waits_where_none_has(scripted):
    scripted.nvml.add(OTHER)
    scripted.nvml.used[ONE] = dict.fromkeys(scripted.pids(), 2 * GB)
    snapshot_id, _ = suspended(scripted)
    scripted.nvml.others = {ONE: 9 * GB, OTHER: 9 * GB}
    calls = list(scripted.driver.calls)
    with pytest.raises((HostIncompatible, ThawFailed), match="MB of GPU memory are needed"):
        scripted.program.resume(snapshot_id)
    assert scripted.driver.calls == calls
    scripted.nvml.others[OTHER] = 0
    scripted.program.resume(snapshot_id)
    assert scripted.driver.maps[-3:] == [{ONE: OTHER, OTHER: ONE}] * 3
    assert scripted.nvml.used == {ONE: {}, OTHER: dict.fromkeys(scripted.pids(), 2 * GB)}
    scripted.check_running()
