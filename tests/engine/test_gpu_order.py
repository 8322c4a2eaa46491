"""The driver's steps for several processes: their order, and what becomes of the others when one of them fails; a scripted driver.

The trees, their processes, descriptors, mappings and staging files are real.
"""

from __future__ import annotations

import pytest

from jupyter_gpuckpt.engine import park
from jupyter_gpuckpt.engine.gpu import gpu_processes
from jupyter_gpuckpt.engine.gpu.driver import cuda
from jupyter_gpuckpt.engine.gpu.gpu_processes import GpuProcesses
from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.errors import (
    FreezeFailed,
    GpuCkptError,
    HostIncompatible,
    KernelNotCheckpointable,
    ToolMissing,
)
from jupyter_gpuckpt.host import privileges, processes
from jupyter_gpuckpt.wire.progress import Progress
from tests.engine.scripted_driver import (
    CHECKPOINTED,
    FAILED,
    LOCKED,
    RUNNING,
    Error,
    ScriptedDriver,
)
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

__all__ = ["devices", "executable", "extras", "run", "scripted", "store"]

GB = 1 << 30
#: Which of the three with a context.
EACH = pytest.mark.parametrize("which", [0, 1, 2], ids=["first", "second", "third"])


def first(calls, step):
    return next(place for place, (each, _) in enumerate(calls) if each == step)


def last(calls, step):
    return max(place for place, (each, _) in enumerate(calls) if each == step)


def test_all_are_locked_before_the_first_is_taken_and_all_come_back(scripted):
    forked = scripted.forked()
    assert cuda.holds_gpu(forked)
    assert not cuda.is_cuda_process(forked), "the driver does not know it"
    taken = GpuProcesses(scripted.program.tree, Progress())
    taken.take(2.5)
    calls = scripted.driver.calls
    assert [pid for step, pid in calls if step == "Lock"] == scripted.all_numbers()
    assert scripted.driver.timeouts == [2500] * 3
    assert last(calls, "Lock") < first(calls, "Checkpoint")
    assert not any(map(cuda.holds_gpu, launch.pids(scripted.program.tree)))
    assert not [area for area in processes.maps(forked) if area.path.startswith("/dev/nvidia")]
    assert {record.pid for record in taken.records()} == scripted.numbers()
    assert all(record.memory_bytes == LENGTH for record in taken.records())
    assert len(taken.files()) == 3

    taken.give_back()
    taken.drop_files()
    for number in scripted.numbers():
        assert scripted.done(number) == ["Lock", "Checkpoint", "Restore", "Unlock"]
    assert calls.count(("Init", 0)) == 1
    assert not cuda.holds_gpu(forked), "what it could never use it has lost for good"
    scripted.check_running()


@EACH
def test_one_whose_work_does_not_end_keeps_nobody_locked(scripted, which):
    numbers = scripted.all_numbers()
    stuck = scripted.fail("Lock", which, Error.CUDA_ERROR_NOT_READY)
    with pytest.raises(FreezeFailed, match="did not end in time") as caught:
        scripted.park()
    assert f"({scripted.pids()[which]}) = CUDA_ERROR_NOT_READY" in caught.value.details
    for place, number in enumerate(numbers):
        expected = ["Lock", "Unlock"] if place < which else ["Lock"] if place == which else []
        assert scripted.done(number) == expected
    assert scripted.done(stuck) == ["Lock"]
    scripted.check_running()
    scripted.driver.failures.clear()
    scripted.park()
    scripted.unpark()
    scripted.check_running()


@EACH
def test_one_that_cannot_be_taken_brings_the_others_back(scripted, which):
    refused = scripted.fail("Checkpoint", which, Error.CUDA_ERROR_NOT_SUPPORTED)
    with pytest.raises(FreezeFailed, match="managed memory") as caught:
        scripted.park()
    assert f"({scripted.pids()[which]}) = CUDA_ERROR_NOT_SUPPORTED" in caught.value.details
    for number in scripted.numbers():
        # Unlock, not Restore, brings back what was refused.
        taken = [] if number == refused else ["Restore"]
        assert scripted.done(number) == ["Lock", "Checkpoint", *taken, "Unlock"]
    calls = scripted.driver.calls
    assert last(calls, "Checkpoint") < min(first(calls, "Restore"), first(calls, "Unlock"))
    scripted.check_running()


def test_a_process_that_begins_to_use_cuda_meanwhile_keeps_its_devices(scripted, monkeypatch):
    forked, driver = scripted.forked(), scripted.driver
    begun, checkpoint, thread = (
        set(),
        driver.cuCheckpointProcessCheckpoint,
        driver.cuCheckpointProcessGetRestoreThreadId,
    )

    def beginning(pid, arguments):
        begun.add(forked)
        return checkpoint(pid, arguments)

    def thread_of(pid):
        return (Error.CUDA_SUCCESS, pid) if pid in begun else thread(pid)

    with monkeypatch.context() as patched:
        patched.setattr(driver, "cuCheckpointProcessCheckpoint", beginning)
        patched.setattr(driver, "cuCheckpointProcessGetRestoreThreadId", thread_of)
        with pytest.raises(FreezeFailed, match="began to use the GPU"):
            scripted.park()
    assert cuda.holds_gpu(forked)
    scripted.check_running()
    scripted.park()
    scripted.unpark()
    scripted.check_running()


@EACH
def test_a_refusal_of_the_operating_system_is_tried_again_the_plain_way(scripted, which):
    number = scripted.fail("Checkpoint", which, Error.CUDA_ERROR_OPERATING_SYSTEM, once=True)
    taken = GpuProcesses(scripted.program.tree, Progress())
    taken.take(2.5)
    assert scripted.done(number) == ["Lock", "Checkpoint", "Checkpoint"]
    assert len(taken.files()) == 2, "the second attempt is made without a staging file"
    taken.give_back()
    taken.drop_files()
    scripted.check_running()


def test_one_that_is_refused_again_runs_on(scripted):
    scripted.fail("Checkpoint", 1, Error.CUDA_ERROR_OPERATING_SYSTEM)
    with pytest.raises(FreezeFailed, match="also at a second attempt"):
        scripted.park()
    scripted.check_running()


@pytest.mark.parametrize(
    ("extras", "said"),
    [((), "This driver cannot"), (("libcupti.so.13",), "A profiler was used")],
    ids=["unknown", "profiled"],
)
def test_a_process_that_was_profiled_is_named(scripted, said):
    scripted.fail("Lock", 0, Error.CUDA_ERROR_NOT_SUPPORTED)
    with pytest.raises(FreezeFailed, match=said):
        scripted.park()
    scripted.check_running()


@pytest.mark.parametrize("extras", [("device-of-another-library",)])
def test_a_device_that_another_library_has_open_is_named(scripted, devices):
    with pytest.raises(KernelNotCheckpointable, match="another library than CUDA") as caught:
        scripted.park()
    assert f"{devices}0" in str(caught.value)
    scripted.check_running()


@pytest.mark.parametrize("extras", [("xla_cuda_plugin.so",)])
def test_jax_is_not_parked_and_nothing_is_locked(scripted):
    with pytest.raises(KernelNotCheckpointable, match="uses JAX") as caught:
        scripted.park()
    assert "Suspend it instead" in caught.value.hint
    assert not [step for step, _ in scripted.driver.calls if step != "Init"]
    scripted.check_running()


@pytest.mark.parametrize("step", ["Restore", "Unlock"])
@EACH
def test_one_that_cannot_be_given_back_does_not_keep_the_others(scripted, which, step):
    assert scripted.park() == 3 * LENGTH
    stays = scripted.fail(step, which, Error.CUDA_ERROR_UNKNOWN)
    with pytest.raises(GpuCkptError, match=step.lower()) as caught:
        scripted.unpark()
    assert f"({scripted.pids()[which]}) = CUDA_ERROR_UNKNOWN" in caught.value.details
    for number in scripted.numbers() - {stays}:
        assert scripted.driver.states[number] == RUNNING
    steps = ["Lock", "Checkpoint", "Restore"]
    assert scripted.done(stays) == (steps if step == "Restore" else [*steps, "Unlock"])
    # Its data are in RAM still, and the next that asks gets them.
    scripted.driver.failures.clear()
    GpuProcesses(scripted.program.tree, Progress()).recover()
    park.unpark(scripted.program.tree, Progress())
    scripted.check_running()


def test_a_failed_process_is_left_alone(scripted):
    scripted.park()
    lost = scripted.fail("Restore", 1, Error.CUDA_ERROR_OPERATING_SYSTEM, FAILED)
    with pytest.raises(GpuCkptError, match="restore"):
        scripted.unpark()
    done = scripted.done(lost)
    assert GpuProcesses(scripted.program.tree, Progress()).recover(), "nothing is left to do"
    assert cuda.bring_back(scripted.pids()[1]) is cuda.ProcessState.FAILED
    assert scripted.done(lost) == done
    for number in scripted.numbers() - {lost}:
        assert scripted.driver.states[number] == RUNNING


def test_a_process_in_another_state_than_thought_is_told(scripted):
    pid = scripted.pids()[0]
    for step in (cuda.checkpoint, cuda.restore, cuda.unlock):
        with pytest.raises(GpuCkptError, match="CUDA_ERROR_ILLEGAL_STATE"):
            step(pid)
    with pytest.raises(FreezeFailed, match="CUDA_ERROR_NOT_INITIALIZED"):
        cuda.lock(scripted.forked(), 1)


def test_what_is_parked_is_taken_as_it_is_and_stays_so(scripted):
    scripted.park()
    before = list(scripted.driver.calls)
    taken = GpuProcesses(scripted.program.tree, Progress())
    taken.take(1.0, parked=True)
    assert {record.pid for record in taken.records()} == scripted.numbers()
    assert all(record.memory_bytes == LENGTH for record in taken.records())
    taken.give_back()
    taken.drop_files()
    assert scripted.driver.calls == before
    scripted.unpark()
    scripted.check_running()


def test_where_another_program_took_the_room_nothing_is_tried(scripted, monkeypatch):
    monkeypatch.setattr(gpu_processes, "PATIENCE_SECONDS", 0.2)
    scripted.nvml.used[ONE] = dict.fromkeys(scripted.pids(), 2 * GB)
    scripted.park()
    assert scripted.nvml.used[ONE] == {}
    scripted.nvml.others[ONE] = 7 * GB  # one of the three fits
    with pytest.raises(FreezeFailed, match="2048 MB of GPU memory are needed"):
        scripted.unpark()
    states = [scripted.driver.states[number] for number in scripted.all_numbers()]
    assert states.count(CHECKPOINTED) == 2
    assert [step for step, _ in scripted.driver.calls].count("Restore") == 1
    scripted.nvml.others[ONE] = 0
    scripted.unpark()
    assert set(scripted.nvml.used[ONE].values()) == {2 * GB}
    scripted.check_running()


def test_what_cannot_be_taken_needs_no_room_on_a_full_gpu(scripted, monkeypatch):
    monkeypatch.setattr(gpu_processes, "PATIENCE_SECONDS", 0.2)
    scripted.nvml.used[ONE] = dict.fromkeys(scripted.pids(), 2 * GB)
    scripted.nvml.others[ONE] = 10 * GB - 6 * GB  # nothing is free
    for which in range(3):
        scripted.fail("Checkpoint", which, Error.CUDA_ERROR_NOT_SUPPORTED)
    with pytest.raises(FreezeFailed, match="managed memory"):
        scripted.park()
    scripted.check_running()


def test_memory_goes_to_the_other_gpu_where_its_own_is_full(scripted):
    scripted.nvml.add(OTHER)
    first, *others = scripted.pids()
    scripted.nvml.used[ONE] = {first: 2 * GB, **dict.fromkeys(others, GB)}
    scripted.park()
    assert scripted.nvml.used[ONE] == {}
    scripted.nvml.others[ONE] = 9 * GB
    scripted.unpark()
    # A pair for every GPU that the driver knows.
    assert {ONE: OTHER, OTHER: ONE} in scripted.driver.maps
    assert sorted(scripted.nvml.used[OTHER].values())[-1] == 2 * GB
    scripted.check_running()


@pytest.mark.parametrize("found", [None, object], ids=["13.0 and 13.3.0", "12.8"])
def test_where_the_bindings_know_no_other_gpu_the_memory_stays_in_ram(scripted, monkeypatch, found):
    scripted.nvml.add(OTHER)
    scripted.nvml.used[ONE] = dict.fromkeys(scripted.pids(), GB)
    scripted.park()
    scripted.nvml.others[ONE] = 9 * GB
    with monkeypatch.context() as patched:
        if found is None:
            patched.delattr(ScriptedDriver, "CUcheckpointRestoreArgs")
        else:
            patched.setattr(ScriptedDriver, "CUcheckpointRestoreArgs", found)
        with pytest.raises(HostIncompatible, match="another version of cuda-bindings"):
            scripted.unpark()
    scripted.unpark()
    assert len(scripted.nvml.used[OTHER]) > 0
    scripted.check_running()


def test_a_child_on_two_gpus_is_refused_before_anything_is_locked(scripted):
    scripted.nvml.add(OTHER)
    first, child, third = scripted.pids()
    scripted.nvml.used[ONE] = dict.fromkeys((first, child, third), GB)
    scripted.nvml.used[OTHER] = {first: GB, child: GB}
    with pytest.raises(KernelNotCheckpointable, match="on 2 GPUs") as caught:
        scripted.park(peer_access_off=True)
    assert f"process {child} " in caught.value.details, "peer access of the kernel itself is off"
    assert not [step for step, _ in scripted.driver.calls if step != "Init"]
    scripted.check_running()
    # Without the agent's word the kernel itself is refused, too.
    scripted.nvml.used[OTHER] = {first: GB}
    with pytest.raises(KernelNotCheckpointable) as caught:
        scripted.park()
    assert f"process {first} " in caught.value.details
    scripted.park(peer_access_off=True)
    scripted.unpark()
    scripted.check_running()


def test_where_the_driver_names_foreign_pids_a_process_may_be_on_two_gpus(scripted, monkeypatch):
    """In a container's PID namespace nobody finds out whether it is."""
    scripted.nvml.add(OTHER)
    monkeypatch.setattr(privileges, "sees_whole_machine", lambda: False)
    with pytest.raises(KernelNotCheckpointable, match="does not report here") as caught:
        scripted.park(peer_access_off=True)
    assert "--pid=host" in caught.value.hint
    assert not [step for step, _ in scripted.driver.calls if step != "Init"]
    scripted.check_running()


def test_a_process_that_begins_to_use_a_second_gpu_meanwhile_is_refused(scripted, monkeypatch):
    scripted.nvml.add(OTHER)
    monkeypatch.setattr(privileges, "sees_whole_machine", lambda: True)
    child = scripted.pids()[1]
    lock = scripted.driver.cuCheckpointProcessLock

    def begin_and_lock(pid, arguments):
        scripted.nvml.used[ONE][child] = scripted.nvml.used[OTHER][child] = GB
        return lock(pid, arguments)

    monkeypatch.setattr(scripted.driver, "cuCheckpointProcessLock", begin_and_lock)
    with pytest.raises(KernelNotCheckpointable, match="on 2 GPUs"):
        scripted.park()
    assert "Checkpoint" not in [step for step, _ in scripted.driver.calls]
    scripted.check_running()


@pytest.mark.parametrize(
    "error", [Error.CUDA_ERROR_NOT_PERMITTED, Error.CUDA_ERROR_NOT_SUPPORTED], ids=lambda e: e.name
)
def test_a_process_of_which_the_driver_tells_nothing_keeps_its_devices(scripted, error):
    forked = scripted.forked()
    scripted.driver.untold[scripted.number(forked)] = error
    with pytest.raises(KernelNotCheckpointable, match=error.name) as caught:
        scripted.park()
    assert f"process {forked} " in caught.value.details
    assert cuda.holds_gpu(forked)
    scripted.check_running()


@pytest.mark.parametrize(
    ("what", "said"), [("mps", r"Multi-Process Service \(MPS\)"), ("mig", "in MIG mode")]
)
def test_a_shared_or_partitioned_gpu_is_refused_before_anything_is_locked(scripted, what, said):
    last_pid = scripted.pids()[-1]
    scripted.nvml.used[ONE] = dict.fromkeys(scripted.pids(), GB)
    if what == "mps":
        scripted.nvml.by_mps.add(last_pid)
    else:
        scripted.nvml.in_parts.add(ONE)
    with pytest.raises(KernelNotCheckpointable, match=said) as caught:
        scripted.park()
    assert caught.value.hint
    if what == "mps":
        assert f"process {last_pid} " in caught.value.details
    assert not [step for step, _ in scripted.driver.calls if step != "Init"]
    scripted.check_running()


def test_an_old_driver_is_named_before_anything_is_locked(scripted, monkeypatch):
    monkeypatch.setattr(scripted.driver, "cuDriverGetVersion", lambda: (Error.CUDA_SUCCESS, 12040))
    monkeypatch.setattr(cuda, "_found", [])
    with pytest.raises(ToolMissing, match="older than 570"):
        scripted.park()


def test_a_daemon_that_died_in_the_middle_is_recovered_from(scripted):
    """What it left locked, checkpointed or running is found by asking the driver."""
    checkpointed, locked, _ = scripted.pids()
    for pid in (checkpointed, locked):
        cuda.lock(pid, 1)
    cuda.checkpoint(checkpointed)
    assert [cuda.state(pid).value for pid in scripted.pids()] == [CHECKPOINTED, LOCKED, RUNNING]
    assert GpuProcesses(scripted.program.tree, Progress()).recover()
    ends = [scripted.done(number)[-2:] for number in scripted.all_numbers()]
    assert ends == [["Restore", "Unlock"], ["Lock", "Unlock"], []]
    scripted.check_running()
