"""Saves, suspends, parks and crashes of a process whose GPU memory goes by the lane, while a thread launches kernels without a pause.

CRIU, init and the lane library are real; the driver's memory is files in RAM (lane/driver.c). The program aborts at the first byte
that is not what it should be.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

from jupyter_gpuckpt.engine import recovery
from jupyter_gpuckpt.engine.gpu import cuda
from jupyter_gpuckpt.engine.gpu.lane import FILES, Lane
from jupyter_gpuckpt.engine.tree import lane_library, launch
from jupyter_gpuckpt.errors import GpuCkptError
from tests.conftest import wait_for
from tests.engine.scripted_driver import Error, ScriptedDriver, ScriptedNvml
from tests.engine.scripted_gpu import LENGTH, ONE, Gpu, devices, executable, put_in, run, store

__all__ = ["devices", "executable", "run", "store"]

GB = 1 << 30
#: As in scripted_cuda.c.
MEMORY = (5 << 20) + (40 << 20) + (2 << 20)


@pytest.fixture(scope="module")
def driver_library(tmp_path_factory) -> Path:
    built = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    source = Path(__file__).parent / "lane/driver.c"
    options = ["-O2", "-Wall", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{built.name}"]
    subprocess.run(["gcc", *options, "-o", built, source], check=True)
    return built


@pytest.fixture
def gpu(run, executable, devices, driver_library, tmp_path, monkeypatch) -> Gpu:
    """One process with a lane, and a child of it without one."""
    folder = tmp_path / "cuda"
    folder.mkdir()
    shutil.copyfile(driver_library, folder / "libcuda.so.1")
    nvml = ScriptedNvml()
    nvml.add(ONE)
    driver = ScriptedDriver(folder, nvml)
    put_in(monkeypatch, driver, nvml)
    words = [str(executable), str(folder), devices, str(LENGTH), "spawn"]
    more = {**lane_library.environment({}), "SCRIPTED_LANE": "1"}
    program = run(
        f"import os; os.execve({words[0]!r}, {words!r}, {{**os.environ, **{more!r}}})",
        gpu_lane=True,
    )
    found = Gpu(folder, driver, nvml, program)
    wait_for(lambda: len(found.numbers()) == 2)
    wait_for(lambda: lane_of(found).is_there)
    nvml.used[ONE] = dict.fromkeys(found.pids(), GB)
    return found


def lane_of(gpu):
    return Lane(gpu.program.tree, gpu.program.tree.kernel_pid)


def held(gpu):
    """How many descriptors init holds for the process."""
    return lane_of(gpu)._hold(b"l")[0]


def check_running(gpu):
    """Its code and its kernels go on, and nothing is left of the operation."""
    status = lane_of(gpu).status()
    assert (status.closed, status.handed) == (False, 0)
    assert held(gpu) == 0
    gpu.check_running()
    assert list(gpu.program.tree.inside(FILES).glob("*-*")) == []
    # It would have aborted at a wrong byte; this is when it has looked again.
    launches = switches(gpu)
    wait_for(lambda: switches(gpu) > launches + 20)


def switches(gpu):
    """Return a figure that grows while the process's threads work."""
    pid = gpu.program.tree.kernel_pid
    return sum(
        int(line.split()[1])
        for path in Path(f"/proc/{pid}/task").glob("*/status")
        for line in path.read_text().splitlines()
        if "ctxt_switches" in line
    )


def resumed(gpu, saved, memory):
    gpu.driver.come_back(memory)
    gpu.program.resume(saved.manifest.info.snapshot_id)
    gpu.nvml.used[ONE] = dict.fromkeys(gpu.pids(), GB)


def lane_streams(saved):
    return [path for one in saved.manifest.gpu for path in one.staging if "lane-" in path]


@pytest.mark.parametrize("room", [True, False], ids=["stays on the GPU", "is copied to RAM"])
def test_saves_lose_nothing_and_a_later_suspend_and_resume_neither(gpu, room):
    if not room:
        gpu.nvml.others[ONE] = (10 << 30) - 3 * GB
    for _ in range(2):
        saved = gpu.program.save()
        [path] = lane_streams(saved)
        assert saved.manifest.stream(f"gpu{path}").length >= MEMORY
        check_running(gpu)
    saved = gpu.program.save(stop=True)
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)
    # The next save finds the memory as the process's own.
    gpu.program.save()
    check_running(gpu)


def test_a_save_can_be_gone_back_to_later(gpu):
    saved, memory = gpu.program.save(), None
    memory = gpu.driver.memory()
    check_running(gpu)
    launch.kill(gpu.program.tree)
    memory.states.update(dict.fromkeys(memory.states, cuda.ProcessState.CHECKPOINTED.value))
    memory.taken.update({number: {ONE: GB} for number in memory.states})
    resumed(gpu, saved, memory)
    check_running(gpu)


def test_a_parked_kernel_is_saved_and_gets_its_memory_back(gpu):
    gpu.park()
    assert lane_of(gpu).status().closed
    assert lane_of(gpu).file is not None
    gpu.unpark()
    check_running(gpu)


@pytest.mark.parametrize("step", ["Lock", "Checkpoint", "Restore", "Unlock"])
@pytest.mark.parametrize("room", [True, False], ids=["stays on the GPU", "is copied to RAM"])
def test_a_step_of_the_driver_that_fails_once_costs_the_save_and_not_the_memory(gpu, step, room):
    if not room:
        gpu.nvml.others[ONE] = (10 << 30) - 3 * GB
    gpu.fail(step, 0, Error.CUDA_ERROR_OPERATING_SYSTEM, once=True)
    # A refused Checkpoint is tried again at once, and a refused Restore at the end of the save.
    with pytest.raises(GpuCkptError) if step in ("Lock", "Unlock") else nullcontext():
        gpu.program.save()
    recovery.recover(gpu.program.tree)
    check_running(gpu)
    gpu.program.save()
    check_running(gpu)


STEPS = ("close_gate", "hand_over", "copy_out", "reopen", "copy_handed_over", "drop_handed_over")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_the_next_daemon_gives_back_what_a_killed_one_had_taken(gpu, monkeypatch, step, before):
    if step == "copy_out":
        gpu.nvml.others[ONE] = (10 << 30) - 3 * GB
    child = os.fork()
    if not child:
        die_at(monkeypatch, step, before=before)
        try:
            gpu.program.save()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    # The scripted driver's states were in the one that died.
    for pid in gpu.pids():
        gpu.driver.states[gpu.number(pid)] = state_of(gpu, pid)
        gpu.driver._taken[gpu.number(pid)] = {}
    recovery.recover(gpu.program.tree)
    check_running(gpu)
    gpu.program.save()
    check_running(gpu)


def state_of(gpu, pid):
    if not cuda.holds_gpu(pid):
        return cuda.ProcessState.CHECKPOINTED.value
    return cuda.ProcessState.RUNNING.value


def die_at(monkeypatch, step, *, before):
    original = getattr(Lane, step)

    def dying(self, *arguments):
        if not before:
            original(self, *arguments)
        os._exit(9)

    monkeypatch.setattr(Lane, step, dying)


def test_somebody_who_asks_nothing_of_init_keeps_it_from_nothing(gpu):
    silent = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    for one in silent:
        one.connect(str(gpu.program.tree.inside("/dev/shm/.gpuckpt/hold.socket")))
        one.close()
    gpu.program.save()
    check_running(gpu)
