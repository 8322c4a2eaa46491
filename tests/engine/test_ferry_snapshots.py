"""Saves, suspends, parks and crashes of a process whose GPU memory goes by the ferry, while a thread launches kernels without a pause.

CRIU, init and the ferry library are real; the driver's memory is files in RAM (ferry/driver.c). The program aborts at the first byte
that is not what it should be.
"""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import socket
import subprocess
import threading
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from jupyter_gpuckpt.engine import recovery
from jupyter_gpuckpt.engine.gpu import gpu_processes
from jupyter_gpuckpt.engine.gpu.driver import cuda
from jupyter_gpuckpt.engine.gpu.ferry import ferries, ferry_copies, ferry_orders, ferry_room
from jupyter_gpuckpt.engine.gpu.ferry.ferry import FILES, Ferry
from jupyter_gpuckpt.engine.gpu.ferry.ferry_room import free_room
from jupyter_gpuckpt.engine.gpu.placement import UNKNOWN
from jupyter_gpuckpt.engine.tree import ferry_library, launch
from jupyter_gpuckpt.errors import FreezeFailed, GpuCkptError, ObjectCorrupt
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.images.unpack import read_stream
from jupyter_gpuckpt.snapshots import gpu_tables
from jupyter_gpuckpt.wire.progress import Progress
from tests.conftest import wait_for
from tests.engine.scripted_driver import Error, ScriptedDriver, ScriptedNvml
from tests.engine.scripted_gpu import (
    LENGTH,
    ONE,
    OTHER,
    Gpu,
    devices,
    executable,
    put_in,
    run,
    store,
)
from tests.parameters import some_slow

__all__ = ["devices", "executable", "run", "store"]

GB = 1 << 30
#: As in scripted_cuda.c.
MEMORY = (5 << 20) + (16 << 20) + (2 << 20)


@pytest.fixture(scope="module")
def driver_library(tmp_path_factory) -> Path:
    built = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    source = Path(__file__).parent / "ferry/driver.c"
    options = [
        "-O3",
        "-Wall",
        "-Werror",
        "-shared",
        "-fPIC",
        f"-Wl,-Bsymbolic,-soname,{built.name}",
    ]
    subprocess.run(["gcc", *options, "-o", built, source], check=True)
    return built


@pytest.fixture
def begin_with_ferry(run, executable, devices, driver_library, tmp_path, monkeypatch):
    """Return a function that starts one process with a ferry on these GPUs, and children; `more`: its variables.

    By default it has one child, without a ferry.
    """

    def begin(*gpus: str, children: Sequence[str] = ("spawn",), **more: str) -> Gpu:
        folder = tmp_path / "cuda"
        folder.mkdir()
        shutil.copyfile(driver_library, folder / "libcuda.so.1")
        nvml = ScriptedNvml()
        for uuid in gpus:
            nvml.add(uuid)
        driver = ScriptedDriver(folder, nvml)
        put_in(monkeypatch, driver, nvml)
        words = [str(executable), str(folder), devices, str(LENGTH), *children]
        variables = {**ferry_library.environment({}), "SCRIPTED_FERRY": "1", **more}
        variables["DRIVER_REFUSES"] = str(folder / "refuses")
        program = run(
            f"import os; os.execve({words[0]!r}, {words!r}, {{**os.environ, **{variables!r}}})",
            gpu_copy="own",
        )
        found = Gpu(folder, driver, nvml, program)
        wait_for(lambda: len(found.numbers()) == 1 + children.count("spawn"))
        wait_for(lambda: ferry_of(found).is_there)
        return found

    return begin


@pytest.fixture
def gpu(begin_with_ferry) -> Gpu:
    """One process with a ferry, and a child of it without one."""
    found = begin_with_ferry(ONE)
    found.nvml.used[ONE] = dict.fromkeys(found.pids(), GB)
    return found


def ferry_of(gpu):
    return Ferry(gpu.program.tree, gpu.program.tree.kernel_pid)


def held(gpu):
    """How many descriptors init holds for the process."""
    return ferry_of(gpu)._hold(b"l")[0]


def check_running(gpu):
    """Its code and its kernels go on, and nothing is left of the operation."""
    status = ferry_of(gpu).status()
    assert (status.closed, status.handed) == (False, 0)
    assert held(gpu) == 0
    assert not ferry_of(gpu).reserved
    gpu.check_running()
    assert list(gpu.program.tree.inside(FILES).glob("*-*")) == []
    # It would have aborted at a wrong byte.
    wait_for_rounds(gpu)


def wait_for_rounds(gpu):
    """Wait until the process has changed and compared all of its memory again, twice."""
    pid = gpu.program.tree.kernel_pid
    before = gpu.driver.rounds(pid)
    wait_for(lambda: gpu.driver.rounds(pid) > before + 2)


def resumed(gpu, saved, memory):
    gpu.driver.come_back(memory)
    gpu.program.resume(saved.manifest.info.snapshot_id)
    gpu.nvml.used[ONE] = dict.fromkeys(gpu.pids(), GB)


def test_no_code_runs_after_a_resume_without_its_ferries_memory(gpu, monkeypatch):
    saved, memory = gpu.program.save(stop=True), gpu.driver.memory()
    gpu.driver.come_back(memory)
    destroy, begun, ended = launch.Namespaces.destroy, [], []

    def unreadable(self, *, fill):
        assert fill is not None
        begun.append(self._pid)
        raise FreezeFailed("a chunk is damaged", hint="")

    def destroying(self):
        for pid in begun:
            wait_for(lambda pid=pid: processes.state(pid) in ("Z", "X", None))
            ended.append(pid)
        destroy(self)

    monkeypatch.setattr(Ferry, "reopen", unreadable)
    monkeypatch.setattr(launch.Namespaces, "destroy", destroying)
    with pytest.raises(GpuCkptError, match="a chunk is damaged"):
        gpu.program.resume(saved.manifest.info.snapshot_id)
    assert len(ended) == 1


def ferry_streams(saved):
    return [path for one in saved.manifest.gpu for path in one.staging if "ferry-" in path]


def let_be_free(gpu, room, monkeypatch):
    """Let the GPU have room for the memory twice, only for parts of it, or for no part."""
    if room == "parts":
        monkeypatch.setattr(ferry_room, "_MARGIN_BYTES", 4 * GB - MEMORY + (2 << 20))
        gpu.nvml.used[ONE] = dict.fromkeys(gpu.pids(), 2 * GB)
        gpu.nvml.used[ONE][gpu.program.tree.kernel_pid] = 4 * GB
    elif room == "none":
        gpu.nvml.others[ONE] = (10 << 30) - 3 * GB


ROOMS = pytest.mark.parametrize("room", ["twice", "parts", "none"])


@ROOMS
def test_saves_lose_nothing_and_a_later_suspend_and_resume_neither(gpu, monkeypatch, room):
    let_be_free(gpu, room, monkeypatch)
    freed, free = [], Ferry.free
    monkeypatch.setattr(Ferry, "free", lambda ferry: freed.append(ferry) or free(ferry))
    for _ in range(2):
        saved = gpu.program.save()
        [path] = ferry_streams(saved)
        assert saved.manifest.stream(f"gpu{path}").length >= MEMORY
        check_running(gpu)
    assert bool(freed) == (room == "none")
    saved = gpu.program.save(stop=True)
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)
    # The next save finds the memory as the process's own.
    gpu.program.save()
    check_running(gpu)


@pytest.mark.parametrize("room", [GB + (20 << 20), GB + MEMORY + (20 << 20)])
def test_saves_succeed_near_the_limit_from_which_memory_is_copied_later(gpu, monkeypatch, room):
    """The room is that for the memory of one process and for the context, with or without what must stay free."""
    gpu.nvml.others[ONE] = 8 * GB - room
    monkeypatch.setattr(ferry_room, "_BY_PARTS_BYTES", 0)
    gpu.program.save()
    check_running(gpu)


def test_a_save_succeeds_though_another_program_takes_some_of_the_room_meanwhile(gpu, monkeypatch):
    original = Ferry.hand_over

    def hand_over(self, rest):
        original(self, rest)
        gpu.nvml.others[ONE] = 8 * GB - MEMORY

    monkeypatch.setattr(Ferry, "hand_over", hand_over)
    gpu.program.save()
    check_running(gpu)


def test_where_the_driver_lists_no_process_the_room_is_that_of_the_fullest_gpu(gpu, monkeypatch):
    gpu.nvml.others[ONE] = 5 * GB
    kernel = gpu.program.tree.kernel_pid
    assert free_room(kernel, {ONE}) == free_room(kernel, {}) == 3 * GB
    gpu.nvml.add(OTHER)
    gpu.nvml.others[OTHER] = 9 * GB
    assert free_room(kernel, {ONE}) == 3 * GB
    assert free_room(kernel, {}) == GB
    # It may see one of them only.
    monkeypatch.setattr(
        ferry_room.processes, "environment", lambda pid: {"CUDA_VISIBLE_DEVICES": ONE}
    )
    assert free_room(kernel, {}) == 3 * GB


@pytest.mark.parametrize(
    ("other", "is_copied_first"), [(ONE, True), (OTHER, False)], ids=["same", "other"]
)
def test_room_that_is_promised_to_another_process_is_not_counted_twice(
    gpu, monkeypatch, other, is_copied_first
):
    """There is room for the memory of one process twice; another one's was handed over before in the same save."""
    gpu.nvml.others[ONE] = 7 * GB - 2 * MEMORY
    original, copied = ferries.Ferries.empty, []

    def empty(self, pid, lock_seconds, used, until):
        if pid == gpu.program.tree.kernel_pid:
            self._uncopied.add(0)
            self._handed_bytes[0] = {other: 2 * MEMORY}
            original(self, pid, lock_seconds, used, until)
            self._uncopied.remove(0)
            del self._handed_bytes[0]
            copied.append(bool(self.files))

    monkeypatch.setattr(ferries.Ferries, "empty", empty)
    gpu.program.save()
    check_running(gpu)
    assert copied == [is_copied_first]


@pytest.mark.parametrize("taken", ["parked", "saved"])
def test_memory_for_which_the_ram_has_no_room_stays_on_the_gpu(gpu, monkeypatch, taken):
    if taken == "saved":
        let_be_free(gpu, "none", monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(ferry_copies, "mem_available", lambda pid: MEMORY)
        patched.setattr(Ferry, "copy_out", None)
        with pytest.raises(GpuCkptError, match="no room in memory"):
            gpu.park() if taken == "parked" else gpu.program.save()
        check_running(gpu)
    gpu.park()
    gpu.unpark()
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
    assert ferry_of(gpu).status().closed
    assert ferry_of(gpu).file is not None
    gpu.unpark()
    check_running(gpu)


def test_a_parked_kernel_without_room_for_its_memory_keeps_it_until_there_is_room(gpu):
    gpu.park()
    # The driver restores the context, and then there is no room for the ferry's memory.
    (gpu.folder / "refuses").write_text("0 2")
    for _ in range(2):
        with pytest.raises(GpuCkptError):
            gpu.unpark()
        assert ferry_of(gpu).file is not None
    gpu.unpark()
    check_running(gpu)


def test_the_room_for_a_parked_kernel_includes_its_ferry_where_the_driver_names_no_process(
    gpu, monkeypatch
):
    monkeypatch.setattr(gpu_processes, "TOLERANCE_BYTES", 0)
    gpu.nvml.used[ONE] = {}
    gpu.park()
    needed = LENGTH + ferry_of(gpu).file.length
    assert needed_by(gpu) == needed
    # It is the same where the daemon that parked it was killed before it could note this.
    gpu.program.tree.inside(f"{FILES}/needs.json").unlink()
    assert needed_by(gpu) == needed


def needed_by(gpu):
    """Return how many bytes the process needs on GPUs that are not known."""
    found = gpu_processes.GpuProcesses(gpu.program.tree, Progress())
    found.parked_room()
    return found._needs[gpu.program.tree.kernel_pid][UNKNOWN]


#: Where the memory is matters to the steps during which it is away.
QUICK_FAILURES = {
    *(("Lock", "twice"), ("Checkpoint", "twice"), ("Restore", "parts"), ("Checkpoint", "none")),
}


@pytest.mark.parametrize(
    ("step", "room"),
    some_slow(
        itertools.product(("Lock", "Checkpoint", "Restore", "Unlock"), ("twice", "parts", "none")),
        QUICK_FAILURES,
    ),
)
def test_a_step_of_the_driver_that_fails_once_costs_the_save_and_not_the_memory(
    gpu, monkeypatch, step, room
):
    let_be_free(gpu, room, monkeypatch)
    gpu.fail(step, 0, Error.CUDA_ERROR_OPERATING_SYSTEM, once=True)
    # A refused Checkpoint is tried again at once, and a refused Restore at the end of the save.
    with pytest.raises(GpuCkptError) if step in ("Lock", "Unlock") else nullcontext():
        gpu.program.save()
    recovery.recover(gpu.program.tree)
    check_running(gpu)
    gpu.program.save()
    check_running(gpu)


STEPS = (
    "close_gate",
    "hand_over",
    "digests",
    "copy_out",
    "free",
    "reopen",
    "copy_handed_over",
    "drop_handed_over",
)


#: Before a step all is as after the one before it; what these leave differs most.
QUICK_CRASHES = {
    *(("after", step) for step in ("close_gate", "hand_over", "free", "copy_handed_over")),
}


@pytest.mark.parametrize(
    ("when", "step"), some_slow(itertools.product(("before", "after"), STEPS), QUICK_CRASHES)
)
def test_the_next_daemon_gives_back_what_a_killed_one_had_taken(gpu, monkeypatch, step, when):
    if step in ("copy_out", "free"):
        gpu.nvml.others[ONE] = (10 << 30) - 3 * GB
    killed_in_a_save(gpu, monkeypatch, step, before=when == "before")
    recovery.recover(gpu.program.tree)
    check_running(gpu)
    gpu.program.save()
    check_running(gpu)


@pytest.mark.parametrize("step", ["copy_out", "hand_over", "reopen"])
def test_the_next_daemon_gives_back_what_one_had_taken_that_was_killed_in_a_suspend(
    gpu, monkeypatch, step
):
    if step == "reopen":  # a suspend that fails ends with it
        gpu.fail("Checkpoint", 1, Error.CUDA_ERROR_NOT_SUPPORTED)
    killed_in_a_save(gpu, monkeypatch, step, before=False, stop=True)
    gpu.driver.failures.clear()
    recovery.recover(gpu.program.tree)
    check_running(gpu)
    saved = gpu.program.save(stop=True)
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)


def test_a_daemon_that_was_killed_in_checkpoint_needs_no_room_for_memory_that_stayed(
    gpu, monkeypatch
):
    checkpoint, kernel = cuda.checkpoint, gpu.program.tree.kernel_pid

    def dying(pid):
        if pid != kernel:
            threading.Event().wait()  # it stays as it is
        checkpoint(pid)
        os._exit(9)

    with monkeypatch.context() as patched:
        patched.setattr(cuda, "checkpoint", dying)
        killed_in_a_save(gpu, monkeypatch, None, before=False)
    del gpu.nvml.used[ONE][kernel]
    gpu.nvml.others[ONE] = 8 * GB + (20 << 20)
    recovery.recover(gpu.program.tree)
    check_running(gpu)


def test_a_gate_behind_which_all_memory_is_opens_without_inits_help(gpu):
    found, holder = ferry_of(gpu), gpu.program.tree.inside("/dev/shm/.gpuckpt/hold.socket")
    found.close_gate(30)
    holder.rename(holder.with_suffix(".away"))
    found.reopen()
    holder.with_suffix(".away").rename(holder)
    check_running(gpu)


def test_room_for_what_the_driver_takes_is_held_from_checkpoint_to_restore(gpu, monkeypatch):
    seen = []

    def noting(name):
        original = getattr(cuda, name)

        def noted(pid, *arguments):
            if pid == gpu.program.tree.kernel_pid:
                seen.append((name, ferry_of(gpu).reserved))
            return original(pid, *arguments)

        monkeypatch.setattr(cuda, name, noted)

    noting("checkpoint")
    noting("restore")
    gpu.program.save()
    check_running(gpu)
    assert seen == [("checkpoint", True), ("restore", False)]


@pytest.mark.parametrize(("room", "times"), [("parts", 1), ("twice", 2)])
def test_memory_that_cannot_be_given_back_at_once_is_given_back_later(
    gpu, monkeypatch, room, times
):
    """The second of three parts has no room; where there is room for parts, two of them are given back at a time."""
    let_be_free(gpu, room, monkeypatch)
    if room == "parts":
        let_two_parts_be_given_back_at_a_time(monkeypatch)
    original = Ferry._give_back

    def refused(self, *arguments, **options):
        monkeypatch.setattr(Ferry, "_give_back", original)
        (gpu.folder / "refuses").write_text(f"1 {times}")
        return original(self, *arguments, **options)

    monkeypatch.setattr(Ferry, "_give_back", refused)
    with suppress(GpuCkptError):
        gpu.program.save()
    assert (gpu.folder / "refuses").read_text().split() == ["0", "0"]
    recovery.recover(gpu.program.tree)
    check_running(gpu)
    gpu.program.save()
    check_running(gpu)


def test_what_a_late_give_back_leaves_in_init_is_not_taken_for_memory_that_is_parked(
    gpu, monkeypatch
):
    refuses, close_gate = gpu.folder / "refuses", Ferry.close_gate
    original = Ferry._give_back

    def refused(self, *arguments, **options):
        refuses.write_text("0 9")
        return original(self, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Ferry, "_give_back", refused)
        with pytest.raises(GpuCkptError):
            gpu.program.save()
    assert ferry_of(gpu).status().handed
    refuses.unlink()

    def closing(self, limit):
        """Let the process change its memory, which it has again, and then close the gate."""
        wait_for_rounds(gpu)
        close_gate(self, limit)

    monkeypatch.setattr(Ferry, "close_gate", closing)
    gpu.park()
    gpu.unpark()
    check_running(gpu)


def let_two_parts_be_given_back_at_a_time(monkeypatch):
    """Let the GPU have room for two parts at a time when memory is given back."""
    monkeypatch.setattr(ferry_room, "PART_BYTES", MEMORY // 2 - (2 << 20))


def test_a_daemon_without_room_for_descriptors_loses_no_memory(gpu, monkeypatch):
    let_be_free(gpu, "parts", monkeypatch)
    let_two_parts_be_given_back_at_a_time(monkeypatch)
    original, failed = Ferry._hold, []

    def held(self, order, *arguments, **options):
        if order != b"g" or failed:
            return original(self, order, *arguments, **options)
        failed.append(order)
        # There is room for the connection and one of the descriptors of the first two parts.
        _, last = free = [os.dup(0) for _ in range(2)]
        ferry_orders.close(free)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, limits[1]))
        try:
            return original(self, order, *arguments, **options)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    monkeypatch.setattr(Ferry, "_hold", held)
    with suppress(GpuCkptError):
        gpu.program.save()
    assert failed
    recovery.recover(gpu.program.tree)
    check_running(gpu)


def test_a_save_that_fails_in_checkpoint_leaves_no_file_of_the_ferry(gpu, monkeypatch):
    let_be_free(gpu, "none", monkeypatch)
    gpu.fail("Checkpoint", 0, Error.CUDA_ERROR_NOT_SUPPORTED)
    with pytest.raises(GpuCkptError):
        gpu.program.save()
    check_running(gpu)


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(gpu, monkeypatch):
    def late(self, device, length):
        request = ferry_orders._REQUEST.pack(ferry_orders.Order.RESERVE, device, 0, 0, length)
        ferry_orders.send(self._peer, request)
        raise TimeoutError("timed out")

    with monkeypatch.context() as patched:
        patched.setattr(ferry_orders.Library, "reserved", late)
        with pytest.raises(GpuCkptError) as caught:
            gpu.program.save()
    assert caught.value.details.endswith("timed out")
    check_running(gpu)


def killed_in_a_save(gpu, monkeypatch, step, *, before, **options):
    """Let a process that saves die before or after a step; None: the caller lets it die."""
    child = os.fork()
    if not child:
        if step is not None:
            die_at(monkeypatch, step, before=before)
        try:
            gpu.program.save(**options)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    # The scripted driver's states were in the one that died.
    for pid in gpu.pids():
        gpu.driver.states[gpu.number(pid)] = state_of(gpu, pid)
        gpu.driver._taken[gpu.number(pid)] = {}


def state_of(gpu, pid):
    if not cuda.holds_gpu(pid):
        return cuda.ProcessState.CHECKPOINTED.value
    return cuda.ProcessState.RUNNING.value


def die_at(monkeypatch, step, *, before):
    original = getattr(Ferry, step)

    def dying(self, *arguments, **options):
        if not before:
            original(self, *arguments, **options)
        os._exit(9)

    monkeypatch.setattr(Ferry, step, dying)


def test_somebody_who_asks_nothing_of_init_keeps_it_from_nothing(gpu):
    silent = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    for one in silent:
        one.connect(str(gpu.program.tree.inside("/dev/shm/.gpuckpt/hold.socket")))
        one.close()
    gpu.program.save()
    check_running(gpu)


#: Memory that no kernel changes, in one allocation; the other memory, which changes all the time, in whole 2 MB; and a chunk, which is
#: read where something in it has changed.
STILL, MOVING, CHUNK = 40 << 20, 24 << 20, 2 << 20


@pytest.fixture
def with_still_memory(monkeypatch):
    """Let the process have memory that it only compares, unless the test lets it change something."""
    monkeypatch.setenv("SCRIPTED_STILL", str(STILL))


def changed(gpu, offset, length):
    """Let the process change these bytes of that memory."""
    # The process may read it at once.
    (gpu.folder / "change.new").write_text(f"{offset} {length}")
    (gpu.folder / "change.new").rename(gpu.folder / "change")
    wait_for(lambda: not (gpu.folder / "change").exists())


class Read:
    """How many bytes each save has copied from the GPU and stored."""

    def __init__(self, gpu, monkeypatch):
        self.gpu, self.lengths = gpu, []
        original = ferry_copies.striped

        def striped(tree, pid, file):
            self.lengths.append(file.length)
            return original(tree, pid, file)

        monkeypatch.setattr(ferry_copies, "striped", striped)

    def save(self, **options):
        self.lengths.clear()
        saved = self.gpu.program.save(**options)
        return saved, sum(self.lengths)


def memory_of(gpu, saved):
    """Return the ferry's memory as the snapshot has it."""
    [path] = ferry_streams(saved)
    return read_stream(saved.manifest.stream(f"gpu{path}"), gpu.program.store)


def tables(saved):
    return [one.name for one in saved.manifest.streams if one.name.startswith("digests/")]


def check_stored(gpu, saved, memory):
    """Check that the snapshot has the memory that nobody changes."""
    assert len(memory) == STILL + MOVING
    assert memory[-STILL:] == memory_of(gpu, saved)[-STILL:]


def test_unchanged_memory_is_neither_copied_nor_stored(with_still_memory, gpu, monkeypatch):
    read = Read(gpu, monkeypatch)
    first, copied = read.save()
    assert copied == STILL + MOVING
    memory = memory_of(gpu, first)
    assert len(tables(first)) == 1
    for _ in range(2):
        saved, copied = read.save()
        assert copied < MOVING + 2 * CHUNK
        assert tables(saved) == tables(first)
        check_stored(gpu, saved, memory)
        check_running(gpu)
    # Nor in a suspend, in which the memory stays on the GPU until the process has ended.
    saved, copied = read.save(stop=True)
    assert copied < MOVING + 2 * CHUNK
    assert saved.manifest.info.sizes.new_bytes < STILL / 2
    check_stored(gpu, saved, memory)
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)
    saved, copied = read.save()
    assert copied < MOVING + 2 * CHUNK
    check_stored(gpu, saved, memory)
    check_running(gpu)


def test_what_changed_is_copied_and_the_rest_is_shared(with_still_memory, gpu, monkeypatch):
    read = Read(gpu, monkeypatch)
    memory = bytearray(memory_of(gpu, read.save()[0])[-STILL:])
    for offset, length in ((0, 1), (10 << 20, 3 << 20), (STILL - 5, 5)):
        changed(gpu, offset, length)
        part = memory[offset : offset + length]
        memory[offset : offset + length] = bytes((byte + 1) % 256 for byte in part)
        saved, copied = read.save()
        assert copied < MOVING + length + 3 * CHUNK
        assert memory_of(gpu, saved)[-STILL:] == memory
    saved = gpu.program.save(stop=True)
    assert memory_of(gpu, saved)[-STILL:] == memory
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)


@pytest.mark.parametrize("how", some_slow(["no-compiler", "nothing", "same"], {"same"}))
def test_digests_that_cannot_be_used_let_everything_be_copied(
    with_still_memory, run, monkeypatch, request, how
):
    monkeypatch.setenv("BROKEN_DIGESTS", how)
    gpu = request.getfixturevalue("gpu")
    read = Read(gpu, monkeypatch)
    for length in (0, 7 << 20):
        if length:
            changed(gpu, 1 << 20, length)
        saved, copied = read.save()
        assert (copied, tables(saved)) == (STILL + MOVING, [])
        check_running(gpu)
    saved = gpu.program.save(stop=True)
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)


def test_digests_that_go_wrong_between_two_saves_lose_nothing(with_still_memory, gpu, monkeypatch):
    """The process computes what it had before for all of its memory, whatever that has become."""
    read = Read(gpu, monkeypatch)
    read.save()
    changed(gpu, 0, STILL)
    original, former = Ferry.digests, []

    def stale(self, allocations, key, *, handed_over):
        found = original(self, allocations, key, handed_over=handed_over)
        former.append(found)
        return former[0] if len(former[0]) == len(found) else found

    earlier = gpu_tables.EarlierGpuMemory(*newest(gpu))
    earlier.prepare()
    former.append(earlier._earlier[stream_of(gpu)].table.digests)
    with monkeypatch.context() as patched:
        patched.setattr(Ferry, "digests", stale)
        saved, copied = read.save()
    assert copied > STILL + MOVING  # the samples were wrong, so all of it was copied after them
    assert tables(saved) == []
    saved = gpu.program.save(stop=True)
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)


def newest(gpu):
    manifest = gpu.program.store.manifest(gpu.program.store.snapshots()[0].snapshot_id)
    return manifest.streams, gpu.program.store


def stream_of(gpu):
    return f"gpu{ferry_of(gpu).file_path}"


def test_a_missing_chunk_of_the_memory_loses_nothing(with_still_memory, gpu, monkeypatch):
    read = Read(gpu, monkeypatch)
    first, _ = read.save()
    chunks = first.manifest.stream(stream_of(gpu)).chunks
    gpu.program.store._catalog.mark_damaged([one.digest for one in chunks if one.digest][-3])
    changed(gpu, 20 << 20, 1 << 20)
    saved, copied = read.save()
    assert copied < STILL
    check_running(gpu)
    saved = gpu.program.save(stop=True)
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)


def test_a_wrong_table_loses_nothing(with_still_memory, gpu, monkeypatch):
    read = Read(gpu, monkeypatch)
    saved, _ = read.save()
    for number, harm in enumerate(("other chunks", "cut", "garbled", "no chunk")):
        assert len(tables(saved)) == 1
        changed(gpu, number << 22, 1 << 20)
        with monkeypatch.context() as patched:
            harm_table(patched, harm)
            saved, copied = read.save()
        assert copied == STILL + MOVING
        check_running(gpu)
    # A table that is as it was written is used.
    saved, copied = read.save()
    assert copied < MOVING + 2 * CHUNK
    saved = gpu.program.save(stop=True)
    resumed(gpu, saved, gpu.driver.memory())
    check_running(gpu)


def harm_table(monkeypatch, harm):
    original = gpu_tables.read_stream

    def reading(stream, store):
        data = original(stream, store)
        if harm == "no chunk":
            raise ObjectCorrupt("it is gone", hint="")
        if harm == "cut":
            return data[32:]
        if harm == "garbled":
            return data[:-40] + bytes(40)
        return data

    monkeypatch.setattr(gpu_tables, "read_stream", reading)
    if harm == "other chunks":
        monkeypatch.setattr(gpu_tables, "_chunks_of", lambda memory: os.urandom(32))


@pytest.mark.parametrize(
    ("step", "before"),
    [
        ("digests", False),
        ("copy_handed_over", True),
        pytest.param("digests", True, marks=pytest.mark.slow),
        pytest.param("copy_handed_over", False, marks=pytest.mark.slow),
    ],
)
def test_a_daemon_that_is_killed_at_the_second_save_loses_nothing(
    with_still_memory, gpu, monkeypatch, step, before
):
    memory = memory_of(gpu, gpu.program.save())
    killed_in_a_save(gpu, monkeypatch, step, before=before)
    recovery.recover(gpu.program.tree)
    check_running(gpu)
    check_stored(gpu, gpu.program.save(), memory)
    check_running(gpu)
