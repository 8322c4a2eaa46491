"""What is missing where memory goes by the ferry: descriptors, room on the GPU, init, or a GPU that the driver can checkpoint.

The error says what is missing, and the process runs on with its memory; where it cannot, its older snapshots can be resumed.
"""

from __future__ import annotations

import os
import resource
import signal
from contextlib import contextmanager

import pytest

from jupyter_gpuckpt.engine import recovery
from jupyter_gpuckpt.engine.gpu.ferry import ferry_orders
from jupyter_gpuckpt.engine.gpu.ferry.ferry import Ferry
from jupyter_gpuckpt.errors import GpuCkptError, KernelLost, KernelNotCheckpointable
from tests.conftest import wait_for
from tests.engine.scripted_gpu import ONE, devices, executable, run, store
from tests.engine.test_ferry_snapshots import (
    begin_with_ferry,
    check_running,
    driver_library,
    ferry_of,
    gpu,
    held,
    resumed,
)

__all__ = ["begin_with_ferry", "devices", "driver_library", "executable", "gpu", "run", "store"]


@contextmanager
def few_descriptors(pid, number):
    """Leave room for so many more descriptors in a process."""
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    free = [each for each in range(len(used) + number + 1) if each not in used]
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[number - 1] + 1, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("stop", [False, True], ids=["save", "suspend"])
@pytest.mark.parametrize("who", ["kernel", "init", "daemon"])
def test_memory_for_whose_hand_over_there_are_too_few_descriptors_is_copied(
    gpu, monkeypatch, who, stop
):
    """There is room for the connection and one of the three parts."""
    tree = gpu.program.tree
    pids = {"kernel": tree.kernel_pid, "init": tree.init_pid, "daemon": os.getpid()}
    original, seen = ferry_orders.Library.descriptors, []

    def descriptors(self, first):
        seen.append(first)
        if who == "init":
            return original(self, first)
        with few_descriptors(pids[who], 1):
            return original(self, first)

    with monkeypatch.context() as patched:
        patched.setattr(ferry_orders.Library, "descriptors", descriptors)
        if who == "init":
            keep(patched, pids["init"])
        saved = gpu.program.save(stop=stop)
    # The kernel gives them one after the other.
    assert seen == ([0, 1, 2] if who == "kernel" else [0])
    if stop:
        memory = gpu.driver.memory()
        gpu.driver.come_back(memory)
        gpu.program.resume(saved.manifest.info.snapshot_id)
    check_running(gpu)
    gpu.program.save()
    check_running(gpu)


def keep(monkeypatch, pid):
    """Let init have room for a connection and one descriptor while it is to keep some of the memory's."""
    original = Ferry._hold

    def hold(self, order, *arguments, **options):
        if order != b"k" or "owner" in options:
            return original(self, order, *arguments, **options)
        with few_descriptors(pid, 2):
            return original(self, order, *arguments, **options)

    monkeypatch.setattr(Ferry, "_hold", hold)


@pytest.mark.parametrize("what", ["saved", "parked"])
def test_memory_for_which_the_gpu_has_no_room_is_waited_for_and_the_error_says_so(
    gpu, monkeypatch, what
):
    original, refuses = Ferry._give_back, gpu.folder / "refuses"

    def refused(self, *arguments, **options):
        refuses.write_text("0 9")
        return original(self, *arguments, **options)

    if what == "parked":
        gpu.park()
    with monkeypatch.context() as patched:
        patched.setattr(Ferry, "_give_back", refused)
        with pytest.raises(GpuCkptError, match="GPU has no room") as caught:
            gpu.unpark() if what == "parked" else gpu.program.save()
    assert "nvidia-smi" in caught.value.hint
    assert "data are safe" in caught.value.hint
    # Its memory is where it was, and it waits for it.
    assert ferry_of(gpu).status().handed == 3
    assert held(gpu) == 3 or ferry_of(gpu).file is not None
    refuses.unlink()
    gpu.unpark() if what == "parked" else recovery.recover(gpu.program.tree)
    check_running(gpu)


@pytest.mark.parametrize("what", ["mps", "mig"])
def test_a_shared_or_partitioned_gpu_is_refused_before_the_gate_is_closed(gpu, monkeypatch, what):
    (gpu.nvml.by_mps if what == "mps" else gpu.nvml.in_parts).add(
        gpu.program.tree.kernel_pid if what == "mps" else ONE
    )
    closed, original = [], Ferry.close_gate
    monkeypatch.setattr(Ferry, "close_gate", lambda *given: closed.append(1) or original(*given))
    for work in (gpu.program.save, lambda: gpu.program.save(stop=True), gpu.park):
        with pytest.raises(
            KernelNotCheckpointable, match=r"\(MPS\)" if what == "mps" else "MIG mode"
        ) as caught:
            work()
        assert caught.value.hint
    assert not closed
    check_running(gpu)


@pytest.mark.parametrize("stop", [False, True])
def test_an_init_that_is_killed_while_it_holds_the_memory_costs_no_older_snapshot(
    gpu, monkeypatch, stop
):
    saved, memory, tree = gpu.program.save(), gpu.driver.memory(), gpu.program.tree
    check_running(gpu)
    pids, original = gpu.pids(), Ferry.hand_over

    def hand_over(self, rest):
        original(self, rest)
        assert held(gpu) == 3
        os.kill(tree.init_pid, signal.SIGKILL)
        wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))

    with monkeypatch.context() as patched:
        patched.setattr(Ferry, "hand_over", hand_over)
        with pytest.raises(KernelLost, match="ended while it was being saved") as caught:
            gpu.program.save(stop=stop)
    assert "last snapshot" in caught.value.hint
    recovery.recover(tree)
    assert [one.snapshot_id for one in gpu.program.store.snapshots()] == [
        saved.manifest.info.snapshot_id
    ]
    memory.states.update(dict.fromkeys(memory.states, 2))
    memory.taken.update({number: {ONE: 1 << 30} for number in memory.states})
    resumed(gpu, saved, memory)
    check_running(gpu)


def test_init_may_hold_more_descriptors_than_the_kernel_may_open(run):
    """A kernel with much GPU memory has thousands, and many systems allow 1,024 at first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    try:
        program = run("import time; time.sleep(600)")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wait_for(lambda: soft_limit(program.tree.init_pid) == hard)
    assert soft_limit(program.tree.kernel_pid) == 300


def soft_limit(pid):
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
