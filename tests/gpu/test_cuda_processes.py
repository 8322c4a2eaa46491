"""A real PyTorch process taken off the GPU and brought back: its tensors, threads, children, and what the driver refuses."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from jupyter_gpuckpt.engine.gpu import gpu_processes
from jupyter_gpuckpt.engine.gpu.driver import cuda
from jupyter_gpuckpt.engine.gpu.driver.cuda import ProcessState
from jupyter_gpuckpt.engine.gpu.driver.gpu_staging import FileStaging
from jupyter_gpuckpt.engine.gpu.driver.release import release
from jupyter_gpuckpt.engine.gpu.gpu_processes import GpuProcesses
from jupyter_gpuckpt.engine.injection import ptrace
from jupyter_gpuckpt.engine.injection.threads_held import ThreadsHeld
from jupyter_gpuckpt.engine.tree.tree import Tree
from jupyter_gpuckpt.errors import FreezeFailed
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.wire.progress import Progress

pytestmark = pytest.mark.gpu

GB = 1 << 30

# Evaluates lines in a namespace with a GPU tensor, a thread that counts on the CPU and one that counts on the GPU.
PROGRAM = """
    import json, multiprocessing, os, sys, threading, time
    import torch
    size = int(sys.argv[1])
    torch.manual_seed(1)
    x = torch.randint(0, 100, (size // 8,), device='cuda', dtype=torch.int64)
    torch.cuda.synchronize()
    counts = {'cpu': 0, 'gpu': 0}
    def count_cpu():
        while True:
            counts['cpu'] += 1
            time.sleep(0.001)
    def count_gpu():
        one = torch.ones(10, device='cuda')
        while True:
            counts['gpu'] += int(one.sum()) // 10
            time.sleep(0.001)
    for function in (count_cpu, count_gpu):
        threading.Thread(target=function, daemon=True).start()
    print(json.dumps('ready'), flush=True)
    for line in sys.stdin:
        try:
            value = eval(line, globals())
        except Exception as error:
            value = repr(error)
        print(json.dumps(value), flush=True)
"""


class Program:
    def __init__(self, process):
        self.process, self.pid = process, process.pid
        assert self.answer() == "ready"
        self.tree = Tree(self.pid, processes.start_time(self.pid), 0, 0, self.pid, self.pid, "")

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        return json.loads(self.process.stdout.readline())

    def ask(self, line):
        self.tell(line)
        return self.answer()

    def do(self, code):
        """Execute statements."""
        return self.ask(f"exec({textwrap.dedent(code)!r}, globals())")

    def sum(self):
        return self.ask("int(x.sum())")


@pytest.fixture(autouse=True)
def needs_a_gpu():
    usable, reason = cuda.available()
    if not usable:
        pytest.skip(reason)
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")


@contextlib.contextmanager
def running(size=GB):
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(PROGRAM), str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Program(process)
        finally:
            process.kill()


@pytest.fixture
def program():
    with running() as found:
        yield found


@pytest.fixture
def directory(tmp_path):
    """Yield a tmpfs as the kernels have it: huge pages, a size that is set."""
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    options = f"huge=always,size={size},mode=0755"
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(tmp_path)], check=False
    )
    if made.returncode:
        pytest.skip("mounting needs root")
    yield str(tmp_path)
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def anonymous_bytes(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) << 10


def test_the_driver_tells_cuda_processes_from_others(program):
    assert cuda.state(program.pid) is ProcessState.RUNNING
    assert cuda.is_cuda_process(program.pid)
    assert cuda.restore_thread(program.pid) in processes.threads(program.pid)
    other = subprocess.Popen(["/bin/sleep", "100"])
    try:
        assert not cuda.holds_gpu(other.pid)
        assert not cuda.is_cuda_process(other.pid)
        assert cuda.restore_thread(other.pid) is None
        assert cuda.bring_back(other.pid) is None
    finally:
        other.kill()
        other.wait()


def test_memory_leaves_the_gpu_and_comes_back_and_cuda_calls_wait(program):
    total = program.sum()
    cuda.lock(program.pid, 10)
    assert cuda.state(program.pid) is ProcessState.LOCKED
    began = time.perf_counter()
    cuda.checkpoint(program.pid)
    print(f"checkpoint of 1 GB: {time.perf_counter() - began:.2f} s")
    assert cuda.state(program.pid) is ProcessState.CHECKPOINTED
    assert not cuda.holds_gpu(program.pid)
    before = program.ask("dict(counts)")
    time.sleep(0.3)
    after = program.ask("dict(counts)")
    assert after["cpu"] > before["cpu"], "Python runs on"
    assert after["gpu"] == before["gpu"], "CUDA calls wait"
    began = time.perf_counter()
    cuda.restore(program.pid)
    print(f"restore of 1 GB: {time.perf_counter() - began:.2f} s")
    assert cuda.state(program.pid) is ProcessState.LOCKED
    cuda.unlock(program.pid)
    assert cuda.state(program.pid) is ProcessState.RUNNING
    assert program.sum() == total
    time.sleep(0.2)
    assert program.ask("counts['gpu']") > after["gpu"]


@pytest.mark.parametrize("step", ["running", "locked", "checkpointed"])
def test_a_process_is_brought_back_from_every_state(program, step):
    total = program.sum()
    if step != "running":
        cuda.lock(program.pid, 10)
    if step == "checkpointed":
        cuda.checkpoint(program.pid)
    assert cuda.bring_back(program.pid) is ProcessState[step.upper()]
    assert cuda.state(program.pid) is ProcessState.RUNNING
    assert program.sum() == total


def test_gpu_memory_is_staged_in_a_file_in_every_generation(program, directory):
    total = program.sum()
    for generation in range(3):
        before = anonymous_bytes(program.pid)
        cuda.lock(program.pid, 10)
        tid = cuda.restore_thread(program.pid)
        began = time.perf_counter()
        with FileStaging(program.tree, program.pid, tid, directory) as staging:
            cuda.checkpoint(program.pid)
        print(f"generation {generation}: {time.perf_counter() - began:.2f} s, {staging.files}")
        assert staging.files
        assert sum(file.length for file in staging.files) >= GB
        mapped = {area.path for area in processes.maps(program.pid)}
        assert mapped >= {file.path for file in staging.files}
        # Not "private" memory: that counts the pages of a shared file, too, as long as one process maps them.
        assert anonymous_bytes(program.pid) - before < GB // 4
        cuda.restore(program.pid)
        cuda.unlock(program.pid)
        assert not {area.path for area in processes.maps(program.pid)} & {
            file.path for file in staging.files
        }, "the driver unmaps it after Restore; the file stays ours"
        staging.discard()
        assert not any(Path(directory).iterdir())
        assert program.sum() == total
        program.do("x += 1")
        total += program.ask("x.numel()")
        assert program.sum() == total


def test_a_process_without_a_context_is_not_traced_to_its_end(directory, monkeypatch):
    code = "import torch; assert torch.cuda.is_available(); print('ready', flush=True); input()"
    calls, original = [], ptrace.syscall_stop

    def counted(tid):
        stop = original(tid)
        calls.extend([stop] if stop.op == ptrace.SYSCALL_ENTRY else [])
        return stop

    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        pid = process.pid
        tree = Tree(pid, processes.start_time(pid), 0, 0, pid, pid, "")
        cuda.lock(pid, 10)
        tid = cuda.restore_thread(pid)
        with monkeypatch.context() as patched:
            patched.setattr(ptrace, "syscall_stop", counted)
            with FileStaging(tree, pid, tid, directory) as staging:
                cuda.checkpoint(pid)
        assert staging.files == []
        # It makes thousands, because tracing makes them slow: it looks again and again whether the GPU is done.
        assert 41 < len(calls) < 1000
        cuda.restore(pid)
        cuda.unlock(pid)
        process.communicate("\n")
    assert process.returncode == 0


@pytest.mark.parametrize("gigabytes", [4, 8])
def test_file_staging_is_faster_than_the_plain_driver_call(directory, gigabytes):
    seconds = {}
    with running(gigabytes * GB) as program:
        total = program.sum()
        for way in ("plain", "file", "plain", "file"):
            cuda.lock(program.pid, 10)
            tid = cuda.restore_thread(program.pid)
            began = time.perf_counter()
            if way == "plain":
                cuda.checkpoint(program.pid)
            else:
                with FileStaging(program.tree, program.pid, tid, directory) as staging:
                    cuda.checkpoint(program.pid)
            checkpointed = time.perf_counter()
            cuda.restore(program.pid)
            restored = time.perf_counter()
            cuda.unlock(program.pid)
            if way == "file":
                staging.discard()
            found = (checkpointed - began, restored - checkpointed)
            print(f"{gigabytes} GB, {way}: checkpoint {found[0]:.2f} s, restore {found[1]:.2f} s")
            seconds[way] = tuple(map(min, found, seconds.get(way, found)))
            assert program.sum() == total
    assert seconds["file"][0] < seconds["plain"][0] / 1.3


def test_restore_needs_the_driver_thread_only(program):
    total = program.sum()
    cuda.lock(program.pid, 10)
    tid = cuda.restore_thread(program.pid)
    cuda.checkpoint(program.pid)
    os.kill(program.pid, signal.SIGSTOP)
    with ThreadsHeld(program.pid, tid) as held:
        assert len(held.tids) == len(processes.threads(program.pid)) - 1
        switches = processes.context_switches(program.pid)
        os.kill(program.pid, signal.SIGCONT)
        cuda.restore(program.pid)
        cuda.unlock(program.pid)
        after = processes.context_switches(program.pid)
        assert {t: after[t] for t in held.tids} == {t: switches[t] for t in held.tids}
    assert program.sum() == total
    count = program.ask("counts['cpu']")
    time.sleep(0.1)
    assert program.ask("counts['cpu']") > count


def test_a_map_of_gpus_is_understood(program):
    driver = pytest.importorskip("cuda.bindings.driver")
    total = program.sum()
    _, count = driver.cuDeviceGetCount()
    raw = [bytes(driver.cuDeviceGetUuid(index)[1].bytes) for index in range(count)]
    names = [
        f"GPU-{u[:4].hex()}-{u[4:6].hex()}-{u[6:8].hex()}-{u[8:10].hex()}-{u[10:].hex()}"
        for u in raw
    ]
    cuda.lock(program.pid, 10)
    cuda.checkpoint(program.pid)
    cuda.restore(program.pid, {name: name for name in names})
    cuda.unlock(program.pid)
    assert program.sum() == total


def test_gpu_work_that_does_not_end_is_told_and_goes_on(program):
    # About five seconds of work on the GPU.
    program.do("torch.cuda._sleep(10_000_000_000)")
    began = time.monotonic()
    with pytest.raises(FreezeFailed, match="did not end in time") as caught:
        cuda.lock(program.pid, 0.5)
    assert "CUDA_ERROR_NOT_READY" in caught.value.details
    assert time.monotonic() - began < 3
    assert cuda.state(program.pid) is ProcessState.RUNNING
    assert program.sum() == program.sum()


def test_managed_memory_is_refused_by_name_and_the_process_computes_on(program):
    total = program.sum()
    program.do("""
        from cuda.bindings import driver
        managed = driver.cuMemAllocManaged(1 << 20, 1)
        assert int(managed[0]) == 0
    """)
    cuda.lock(program.pid, 10)
    with pytest.raises(FreezeFailed, match="managed memory") as caught:
        cuda.checkpoint(program.pid)
    assert "CUDA_ERROR_NOT_SUPPORTED" in caught.value.message
    assert cuda.bring_back(program.pid) is ProcessState.LOCKED
    assert cuda.state(program.pid) is ProcessState.RUNNING
    assert program.sum() == total


def test_memory_that_another_program_took_meanwhile_is_not_the_end(
    program, directory, monkeypatch, hog
):
    monkeypatch.setattr(gpu_processes, "DIRECTORY", directory)
    monkeypatch.setattr(gpu_processes, "PATIENCE_SECONDS", 0.5)
    tree = Tree(program.pid, 0, program.pid, program.pid, program.pid, program.pid, "")
    total = program.sum()
    taken = GpuProcesses(tree, Progress())
    taken.take(10)
    with hog():
        taken.give_back(later=True)
        with pytest.raises(FreezeFailed, match="Another program took"):
            taken.give_back()
        assert cuda.state(program.pid) is ProcessState.CHECKPOINTED
        with pytest.raises(FreezeFailed, match="Another program took"):
            GpuProcesses(tree, Progress()).take(10)
        assert program.ask("1 + 1") == 2
    again = GpuProcesses(tree, Progress())
    again.take(10)
    assert again.records(), "it was given back and taken again"
    again.give_back()
    assert cuda.state(program.pid) is ProcessState.RUNNING
    assert program.sum() == total


def test_forked_children_are_told_apart_and_released(program):
    total = program.sum()
    program.do("""
        context = multiprocessing.get_context('fork')
        pool = context.Pool(3)
        pool.map(abs, range(3))
    """)
    children = processes.children(program.pid)
    assert len(children) == 3
    assert all(cuda.holds_gpu(child) for child in children)
    assert not any(cuda.is_cuda_process(child) for child in children)
    cuda.lock(program.pid, 10)
    cuda.checkpoint(program.pid)
    for child in children:
        began = time.perf_counter()
        released = release(child)
        print(f"{released} in {time.perf_counter() - began:.3f} s")
        assert released.descriptors > 0
        assert released.mappings > 0
        assert not cuda.holds_gpu(child)
        assert not [a for a in processes.maps(child) if a.path.startswith("/dev/nvidia")]
    assert cuda.bring_back(program.pid) is ProcessState.CHECKPOINTED
    assert program.sum() == total
    assert program.ask("pool.map(abs, range(-3, 3))") == [3, 2, 1, 0, 1, 2]


def test_data_loader_workers_go_on_after_release(program):
    program.do("""
        from torch.utils.data import DataLoader, TensorDataset
        loader = DataLoader(TensorDataset(torch.arange(1000)), batch_size=10, num_workers=2,
                            pin_memory=True, persistent_workers=True)
        batches = iter(loader)
        seen = [int(next(batches)[0][0]) for _ in range(20)]
    """)
    workers = [child for child in processes.children(program.pid) if cuda.holds_gpu(child)]
    assert len(workers) == 2
    cuda.lock(program.pid, 10)
    cuda.checkpoint(program.pid)
    assert all(release(worker).descriptors for worker in workers)
    cuda.bring_back(program.pid)
    assert program.ask("[int(b[0].cuda()[0]) for b in batches]") == list(range(200, 1000, 10))
