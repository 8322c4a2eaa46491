"""Parks that take the ferry's memory only and leave the context on the GPU, and what takes it later; a scripted driver, a real ferry."""

from __future__ import annotations

import pytest

from jupyter_gpuckpt.engine import park, recovery
from jupyter_gpuckpt.engine.gpu import gpu_processes
from jupyter_gpuckpt.engine.gpu.driver import cuda
from jupyter_gpuckpt.engine.gpu.ferry.ferry import FILES
from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.errors import FreezeFailed, GpuCkptError, KernelNotCheckpointable
from jupyter_gpuckpt.host import gpu as host_gpu
from jupyter_gpuckpt.snapshots.save import save
from jupyter_gpuckpt.wire.manifest_records import SaveOptions
from jupyter_gpuckpt.wire.progress import Progress
from tests.conftest import wait_for
from tests.engine.scripted_driver import CHECKPOINTED, RUNNING, Error
from tests.engine.scripted_gpu import ONE, Gpu, devices, executable, run, store
from tests.engine.test_ferry_snapshots import (
    begin_with_ferry,
    check_running,
    driver_library,
    ferry_of,
    resumed,
)

__all__ = ["begin_with_ferry", "devices", "driver_library", "executable", "run", "store"]

GB = 1 << 30
#: What a process has on the GPU beside the ferry's memory.
CONTEXT = GB // 2
#: What the ferry allocates for it (scripted_cuda.c), in pieces of 2 MB.
MEMORY = 24 << 20


@pytest.fixture
def gpu(begin_with_ferry) -> Gpu:
    """One process with a ferry."""
    found = begin_with_ferry(ONE, children=())
    set_used(found, CONTEXT + MEMORY)
    return found


def set_used(gpu, size):
    """Set what NVML reports; the scripted one does not see what becomes of the ferry's memory."""
    gpu.nvml.used[ONE] = {gpu.program.tree.kernel_pid: size}


def park_softly(gpu):
    assert gpu.park(keep_contexts=True) == MEMORY
    set_used(gpu, CONTEXT)


def check_parked(gpu, state):
    """Its memory is in RAM, and it waits for it; the code that uses no GPU goes on."""
    (number,) = gpu.numbers()
    assert gpu.driver.states[number] == state
    status = ferry_of(gpu).status()
    assert status.closed
    assert status.handed > 0
    assert ferry_of(gpu).bytes_in_files == MEMORY
    pid = gpu.program.tree.kernel_pid
    rounds, ticks = gpu.driver.rounds(pid), gpu.driver.ticks(pid)
    wait_for(lambda: gpu.driver.ticks(pid) > ticks)
    assert gpu.driver.rounds(pid) == rounds


def freeze(gpu, *, stop=False):
    program = gpu.program
    options = SaveOptions(stop=stop, name="program", parked=True)
    return save(
        program.tree, program.spec, program.store, program.engine, options, progress=Progress()
    )


def test_the_driver_takes_nothing_and_all_memory_comes_back(gpu):
    (number,) = gpu.numbers()
    for _ in range(2):
        park_softly(gpu)
        check_parked(gpu, RUNNING)
        gpu.unpark()
        set_used(gpu, CONTEXT + MEMORY)
        check_running(gpu)
    assert set(gpu.done(number)) == {"Lock", "Unlock"}
    gpu.program.save()
    check_running(gpu)


def test_where_other_memory_than_the_ferrys_is_on_the_gpu_all_of_it_is_taken(gpu):
    set_used(gpu, 2 * GB)
    gpu.park(keep_contexts=True)
    check_parked(gpu, CHECKPOINTED)
    gpu.unpark()
    check_running(gpu)


def test_where_the_driver_lists_no_process_all_of_its_memory_is_taken(gpu):
    gpu.nvml.used[ONE] = {}
    gpu.park(keep_contexts=True)
    check_parked(gpu, CHECKPOINTED)
    gpu.unpark()
    check_running(gpu)


def test_a_child_without_a_ferry_is_not_left_at_work_on_the_gpu(begin_with_ferry):
    gpu = begin_with_ferry(ONE)
    gpu.nvml.used[ONE] = dict.fromkeys(gpu.pids(), CONTEXT)
    gpu.park(keep_contexts=True)
    assert set(gpu.driver.states.values()) == {CHECKPOINTED}
    gpu.unpark()
    check_running(gpu)


def test_a_context_is_taken_later_and_all_of_it_comes_back(gpu):
    park_softly(gpu)
    assert gpu.park_contexts() > 0
    check_parked(gpu, CHECKPOINTED)
    assert not gpu.nvml.used[ONE]
    assert gpu.park_contexts() == 0, "nothing is left to be taken"
    gpu.unpark()
    check_running(gpu)


@pytest.mark.parametrize("step", ["Lock", "Checkpoint"])
def test_a_context_that_cannot_be_taken_stays_and_so_does_the_memory_in_ram(gpu, step):
    park_softly(gpu)
    gpu.fail(step, 0, Error.CUDA_ERROR_NOT_SUPPORTED)
    with pytest.raises(GpuCkptError):
        gpu.park_contexts()
    with pytest.raises(GpuCkptError):
        freeze(gpu)
    gpu.driver.failures.clear()
    check_parked(gpu, RUNNING)
    assert list(gpu.program.tree.inside(FILES).glob("gpu-*")) == []
    gpu.park_contexts()
    gpu.unpark()
    check_running(gpu)


def test_a_context_is_brought_back_where_a_device_stays_open(gpu, devices, monkeypatch):
    park_softly(gpu)

    def refuse(pid):
        raise KernelNotCheckpointable("It has a device open.")

    with monkeypatch.context() as patched:
        patched.setattr(gpu_processes.gpu_refusals, "refuse_leftovers", refuse)
        with pytest.raises(KernelNotCheckpointable):
            gpu.park_contexts()
    check_parked(gpu, RUNNING)
    gpu.unpark()
    check_running(gpu)


def test_a_save_takes_the_context_and_leaves_the_kernel_parked(gpu):
    park_softly(gpu)
    saved = freeze(gpu)
    check_parked(gpu, CHECKPOINTED)
    assert saved.manifest.gpu[0].by_gpu == {ONE: CONTEXT + MEMORY}
    memory = gpu.driver.memory()
    gpu.unpark()
    check_running(gpu)
    launch.kill(gpu.program.tree)
    resumed(gpu, saved, memory)
    check_running(gpu)


def test_a_suspend_takes_the_context_and_a_resume_brings_all_of_it(gpu):
    park_softly(gpu)
    saved = freeze(gpu, stop=True)
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)


def test_the_room_that_it_needs_is_that_of_its_memory(gpu):
    park_softly(gpu)
    assert park.room(gpu.program.tree).needed_bytes == MEMORY
    gpu.park_contexts()
    assert park.room(gpu.program.tree).needed_bytes == CONTEXT + MEMORY


def test_without_room_it_stays_parked_until_there_is_some(gpu, monkeypatch):
    park_softly(gpu)
    monkeypatch.setattr(gpu_processes, "PATIENCE_SECONDS", 0.1)
    gpu.nvml.others[ONE] = (10 << 30) - CONTEXT - MEMORY + 1
    with pytest.raises(FreezeFailed, match="GPU memory are needed"):
        gpu.unpark()
    check_parked(gpu, RUNNING)
    gpu.nvml.others[ONE] -= 1
    gpu.unpark()
    check_running(gpu)


def test_the_next_daemon_lets_it_run_on_where_one_was_killed_in_the_park(gpu, monkeypatch):
    """It finds the memory in RAM, and a process that is locked or not."""
    for step in ("lock", "unlock"):
        original, calls = getattr(cuda, step), []

        def dying(pid, *arguments, original=original, calls=calls):
            calls.append(pid)
            if len(calls) == 2:
                raise SystemExit
            original(pid, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(cuda, step, dying)
            patched.setattr(gpu_processes.GpuProcesses, "give_back", lambda self: None)
            patched.setattr(gpu_processes.GpuProcesses, "drop_files", lambda self: None)
            with pytest.raises(SystemExit):
                gpu.park(keep_contexts=True)
        assert ferry_of(gpu).status().handed > 0
        recovery.recover(gpu.program.tree)
        check_running(gpu)
    assert host_gpu.used_by(gpu.program.tree.kernel_pid)
