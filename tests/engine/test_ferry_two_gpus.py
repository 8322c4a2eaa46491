"""Saves, suspends and crashes of a process with memory of the ferry on two GPUs, with and without peer access, while a thread uses it.

As in `test_ferry_snapshots`: CRIU, init and the library are real, and the program aborts at the first wrong byte or where a GPU has lost
its access to memory.
"""

from __future__ import annotations

import itertools
import os
import threading
from contextlib import nullcontext

import pytest

from jupyter_gpuckpt.engine import recovery
from jupyter_gpuckpt.engine.gpu import gpu_processes
from jupyter_gpuckpt.engine.gpu.driver import cuda
from jupyter_gpuckpt.engine.gpu.ferry import ferry_room
from jupyter_gpuckpt.engine.gpu.ferry.ferry import Ferry
from jupyter_gpuckpt.engine.gpu.ferry.ferry_orders import Allocation
from jupyter_gpuckpt.engine.gpu.ferry.ferry_room import by_gpu, located, without
from jupyter_gpuckpt.engine.gpu.placement import UNKNOWN, place
from jupyter_gpuckpt.errors import GpuCkptError
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.wire.manifest_records import Gpu as Model
from tests.conftest import wait_for
from tests.engine.scripted_driver import Error
from tests.engine.scripted_gpu import (
    ONE,
    OTHER,
    Gpu,
    devices,
    executable,
    run,
    store,
)
from tests.engine.test_ferry_snapshots import (
    GB,
    MEMORY,
    begin_with_ferry,
    die_at,
    driver_library,
    ferry_of,
    ferry_streams,
    state_of,
)
from tests.engine.test_ferry_snapshots import check_running as check_memory
from tests.parameters import some_slow

__all__ = ["begin_with_ferry", "devices", "driver_library", "executable", "run", "store"]

#: What is on each GPU: as in scripted_cuda.c.
ON_ONE, ON_OTHER = (5 << 20) + (1 << 20) + (2 << 20), 16 << 20


@pytest.fixture(params=["apart", "peers"])
def gpu(request, begin_with_ferry) -> Gpu:
    """One process with a ferry on two GPUs, and a child of it without one."""
    more = {"SCRIPTED_GPUS": "2", "DRIVER_GPUS": "2"}
    if request.param == "peers":
        more["SCRIPTED_PEERS"] = "1"
    found = begin_with_ferry(ONE, OTHER, **more)
    use(found)
    return found


def use(gpu):
    """Let the GPUs have what the processes use: the child is on the first one only."""
    gpu.nvml.used[ONE] = dict.fromkeys(gpu.pids(), GB)
    gpu.nvml.used[OTHER] = {gpu.program.tree.kernel_pid: GB}


def check_running(gpu):
    """Its memory is right, and peer access is as it was."""
    check_memory(gpu)
    pid = gpu.program.tree.kernel_pid
    before = 2 if "SCRIPTED_PEERS" in processes.environment(pid) else 0
    wait_for(lambda: gpu.driver.peers(pid) == before)


def save(gpu, **options):
    """Save without the agent, which would switch peer access off; the library does it."""
    return gpu.program.save(**options)


def resumed(gpu, saved, memory):
    gpu.driver.come_back(memory)
    gpu.program.resume(saved.manifest.info.snapshot_id)
    use(gpu)


def let_be_free(gpu, room):
    """Let both GPUs have room for the memory twice, or the second only for parts of it, or for no part."""
    if room == "parts":
        gpu.nvml.others[OTHER] = 9 * GB - ferry_room._MARGIN_BYTES - (2 << 20)
    elif room == "none":
        gpu.nvml.others[OTHER] = 9 * GB - (20 << 20)


@pytest.fixture
def small_spare(monkeypatch):
    """Let a GPU with half a GB have room for parts."""
    monkeypatch.setattr(ferry_room, "_BY_PARTS_BYTES", GB // 2)


class Steps:
    """The ways that the memory of the saves went."""

    def __init__(self, monkeypatch):
        self.seen = []
        for name in ("hand_over", "copy_out", "free", "copy_handed_over"):
            self._note(monkeypatch, name, getattr(Ferry, name))

    def _note(self, monkeypatch, name, original):
        def noting(ferry, *arguments, **options):
            self.seen.append(name)
            return original(ferry, *arguments, **options)

        monkeypatch.setattr(Ferry, name, noting)


WAYS = {
    "twice": ["hand_over", "copy_handed_over"],
    "parts": ["copy_out", "hand_over"],
    "none": ["copy_out", "free"],
}


@pytest.mark.parametrize("room", some_slow(WAYS, {"parts"}))
def test_memory_of_two_gpus_goes_the_way_for_which_both_have_room(
    gpu, monkeypatch, small_spare, room
):
    let_be_free(gpu, room)
    steps = Steps(monkeypatch)
    saved = save(gpu)
    assert steps.seen == WAYS[room]
    [path] = ferry_streams(saved)
    assert saved.manifest.stream(f"gpu{path}").length == MEMORY + (1 << 20)
    check_running(gpu)
    saved = save(gpu, stop=True)
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)
    # The next save finds the memory as the process's own.
    save(gpu)
    check_running(gpu)


def test_room_is_held_on_both_gpus_and_each_gets_its_own_needs(gpu, monkeypatch):
    seen, needed, original = [], [], Ferry.hand_over

    def hand_over(self, rest):
        seen.append(dict(rest))
        original(self, rest)
        assert self.reserved == 2
        monkeypatch.setattr(gpu_processes, "place", placing)

    def placing(needs, *arguments, **options):
        needed.append((dict(needs), options["stays"]))
        return place(needs, *arguments, **options)

    monkeypatch.setattr(Ferry, "hand_over", hand_over)
    save(gpu)
    check_running(gpu)
    rest = {ONE: GB - ON_ONE, OTHER: GB - ON_OTHER}
    assert seen == [{0: rest[ONE], 1: rest[OTHER]}]
    assert (rest, True) in needed


def test_a_parked_process_gets_the_memory_of_both_gpus_back(gpu):
    for _ in range(2):
        gpu.park()
        assert ferry_of(gpu).file.length == MEMORY + (1 << 20)
        gpu.unpark()
        check_running(gpu)


@pytest.mark.parametrize(
    ("device", "way"),
    some_slow(
        itertools.product((0, 1), ("saved", "parked")),
        {(1, "saved")},
    ),
)
def test_a_gpu_that_has_no_room_for_a_while_costs_nothing(gpu, monkeypatch, device, way):
    original, refuses = Ferry._give_back, gpu.folder / "refuses"

    def refused(self, *arguments, **options):
        refuses.write_text(f"0 9 {device}")
        return original(self, *arguments, **options)

    if way == "parked":
        gpu.park()
    with monkeypatch.context() as patched:
        patched.setattr(Ferry, "_give_back", refused)
        with pytest.raises(GpuCkptError, match="GPU has no room"):
            save(gpu) if way == "saved" else gpu.unpark()
    assert ferry_of(gpu).status().handed
    refuses.unlink()
    gpu.unpark() if way == "parked" else recovery.recover(gpu.program.tree)
    check_running(gpu)
    save(gpu)
    check_running(gpu)


@pytest.mark.parametrize(
    ("step", "room"),
    some_slow(
        itertools.product(("Lock", "Checkpoint", "Restore", "Unlock"), WAYS),
        {("Restore", "parts")},
    ),
)
def test_a_step_of_the_driver_that_fails_once_costs_no_memory_of_either_gpu(
    gpu, small_spare, step, room
):
    let_be_free(gpu, room)
    gpu.fail(step, 0, Error.CUDA_ERROR_OPERATING_SYSTEM, once=True)
    with pytest.raises(GpuCkptError) if step in ("Lock", "Unlock") else nullcontext():
        save(gpu)
    recovery.recover(gpu.program.tree)
    check_running(gpu)
    save(gpu)
    check_running(gpu)


STEPS = ("close_gate", "hand_over", "copy_out", "free", "reopen", "copy_handed_over")


@pytest.mark.parametrize(
    ("when", "step"),
    some_slow(itertools.product(("before", "after"), STEPS), {("after", "hand_over")}),
)
def test_the_next_daemon_gives_back_the_memory_of_both_gpus(gpu, monkeypatch, when, step):
    if step in ("copy_out", "free"):
        let_be_free(gpu, "none")
    kill_in_a_save(gpu, lambda: die_at(monkeypatch, step, before=when == "before"))
    recovery.recover(gpu.program.tree)
    check_running(gpu)
    save(gpu)
    check_running(gpu)


def kill_in_a_save(gpu, prepare):
    """Let a process that saves die; `prepare` lets it."""
    child = os.fork()
    if not child:
        prepare()
        try:
            save(gpu)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    for pid in gpu.pids():
        gpu.driver.states[gpu.number(pid)] = state_of(gpu, pid)
        gpu.driver._taken[gpu.number(pid)] = {}


def test_a_process_comes_back_where_init_holds_its_memory_also_for_another_daemon(gpu, monkeypatch):
    """One of its GPUs has too little room when the next daemon looks, so that it waits."""
    found, restored, checkpoint = [], cuda.bring_back, cuda.checkpoint

    def dying(pid):
        if pid != gpu.program.tree.kernel_pid:
            threading.Event().wait()
        checkpoint(pid)
        os._exit(9)

    kill_in_a_save(gpu, lambda: monkeypatch.setattr(cuda, "checkpoint", dying))
    del gpu.nvml.used[ONE][gpu.program.tree.kernel_pid]
    gpu.nvml.used[OTHER] = {}
    # Swapped, its two needs would fit.
    gpu.nvml.others[ONE] = 8 * GB + ON_OTHER - (1 << 20)
    monkeypatch.setattr(cuda, "bring_back", lambda *given: found.append(given) or restored(*given))
    recovery.recover(gpu.program.tree)
    assert cuda.state(gpu.program.tree.kernel_pid) is cuda.ProcessState.CHECKPOINTED
    assert not any(gpu_map for _, gpu_map in found)
    gpu.nvml.others[ONE] = 0
    recovery.recover(gpu.program.tree)
    check_running(gpu)


def allocations(*devices_and_sizes):
    return [Allocation(0, size, 0, device, 0) for device, size in devices_and_sizes]


def test_it_is_only_said_on_which_gpu_memory_is_where_that_is_certain(monkeypatch):
    monkeypatch.setattr(ferry_room.gpu, "free_bytes", lambda: {ONE: GB, OTHER: GB})
    both, memory = {0: ONE, 1: OTHER}, allocations((0, 5), (1, 7), (0, 1))
    for told, used, expected in (
        (both, {ONE: 10, OTHER: 10}, {ONE: 6, OTHER: 7}),
        (both, {}, {ONE: 6, OTHER: 7}),
        # It does not say it, or what it says does not fit what the driver says.
        ({}, {ONE: 10, OTHER: 10}, {UNKNOWN: 13}),
        (both, {ONE: 10, OTHER: 6}, {UNKNOWN: 13}),
        ({0: ONE}, {ONE: 10, OTHER: 10}, {UNKNOWN: 13}),
        ({0: "GPU-of-another-machine", 1: OTHER}, {}, {UNKNOWN: 13}),
        # The driver lists one GPU.
        ({}, {OTHER: 20}, {OTHER: 13}),
        ({0: ONE, 1: ONE}, {OTHER: 20}, {OTHER: 13}),
    ):
        assert by_gpu(memory, located(told, memory, used)) == expected
    assert by_gpu([], located(both, [], {})) == {}


def test_what_is_needed_beside_memory_is_never_counted_too_low():
    used = {ONE: 10, OTHER: 4}
    assert without(used, {}) == used
    assert without(used, {ONE: 6, OTHER: 1}) == {ONE: 4, OTHER: 3}
    assert without(used, {UNKNOWN: 8}) == {ONE: 6, OTHER: 4}
    assert without({UNKNOWN: 20}, {ONE: 6, OTHER: 7}) == {UNKNOWN: 7}
    assert without({UNKNOWN: 20}, {UNKNOWN: 13}) == {UNKNOWN: 7}


def test_a_process_whose_memory_init_holds_is_not_moved():
    here = [Model(uuid=uuid, name="one", memory_bytes=10) for uuid in (ONE, OTHER)]
    free = {ONE: 1, OTHER: 9}
    assert place({ONE: 2}, here, here, free).gpu_map == {ONE: OTHER, OTHER: ONE}
    stays = place({ONE: 2}, here, here, free, stays=True)
    assert (stays.gpu_map, bool(stays.shortage)) == ({}, True)
