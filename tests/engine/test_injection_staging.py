"""The driver's big mmap turned into a file, shown with a program that makes exactly that call; and every way it can fail."""

import contextlib
import itertools
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from jupyter_gpuckpt.engine.gpu_staging import FileStaging, StagingFile
from jupyter_gpuckpt.engine.tracee import Tracee
from jupyter_gpuckpt.engine.tree import Tree
from jupyter_gpuckpt.host import processes

MB = 1 << 20

# One thread waits for lengths, maps as the CUDA driver does, fills the mapping and checks it after the others have worked.
DRIVER = """
    import ctypes, json, os, signal, sys, threading, time
    if len(sys.argv) > 1:
        os.chroot(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    signals = []
    signal.signal(signal.SIGUSR1, lambda *_: signals.append(1))
    PRIVATE, ANONYMOUS, POPULATE = 2, 0x20, 0x8000
    def serve():
        print(threading.get_native_id(), flush=True)
        for line in sys.stdin:
            length, flags, extra = json.loads(line)
            address = libc.mmap(None, length, 3, flags, -1, 0)
            if address in (None, ctypes.c_void_p(-1).value):
                print(json.dumps({'errno': ctypes.get_errno()}), flush=True)
                continue
            for at in range(0, length, 4096):
                ctypes.memset(address + at, 7, 1)
            ctypes.memset(address + length - 1, 7, 1)
            child = None
            if extra == 'calls':
                for _ in range(1000):
                    os.getppid()
            if extra == 'fork':
                child = os.fork()
                if not child:
                    signal.pause()
                    os._exit(0)
            print(json.dumps({'address': address, 'child': child, 'signals': len(signals),
                              'last': ctypes.string_at(address + length - 1, 1)[0]}), flush=True)
    thread = threading.Thread(target=serve)
    thread.start()
    while thread.is_alive():
        thread.join(0.05)
"""
CALL = 0x2 | 0x20 | 0x8000


class Driver:
    def __init__(self, process):
        self.process, self.pid = process, process.pid
        self.tid = int(process.stdout.readline())
        self.tree = Tree(self.pid, processes.start_time(self.pid), 0, 0, self.pid, self.pid, "")

    def ask(self, length, flags=CALL, extra=""):
        self.process.stdin.write(json.dumps([length, flags, extra]) + "\n")
        self.process.stdin.flush()

    def answer(self):
        return json.loads(self.process.stdout.readline())

    def map(self, length, flags=CALL, extra=""):
        self.ask(length, flags, extra)
        return self.answer()

    def mapping(self, address):
        """What lies at that address."""
        return next(a for a in processes.maps(self.pid) if a.start <= address < a.end)

    def flags_at(self, address):
        """VmFlags of the mapping there (man proc, smaps)."""
        blocks = Path(f"/proc/{self.pid}/smaps").read_text().split("VmFlags: ")
        for before, after in itertools.pairwise(blocks):
            header = [line for line in before.splitlines() if line[:1] in "0123456789abcdef"][-1]
            start, end = (int(part, 16) for part in header.split()[0].split("-"))
            if start <= address < end:
                return after.splitlines()[0].split()
        raise AssertionError(address)


@contextlib.contextmanager
def running(*words):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER), *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Driver(process)
        finally:
            process.kill()


@pytest.fixture
def driver():
    with running() as program:
        yield program


@pytest.fixture
def directory():
    """A folder on a tmpfs."""
    path = Path(f"/dev/shm/gpuckpt-test-{os.getpid()}")
    path.mkdir()
    yield str(path)
    shutil.rmtree(path)


def names(directory):
    """What is in it."""
    return sorted(path.name for path in Path(directory).iterdir())


@pytest.fixture
def small_tmpfs(tmp_path):
    """A folder on a tmpfs of 8 MB."""
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path)], check=False
    )
    if made.returncode:
        pytest.skip("mounting needs root")
    yield str(tmp_path)
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def private(driver, result, length):
    """Whether the program got working private memory."""
    area = driver.mapping(result["address"])
    return (
        result["last"] == 7 and area.path == "" and area.private and area.end - area.start >= length
    )


def test_the_call_becomes_a_mapping_of_a_new_file(driver, directory):
    length = 100 * MB + 4096
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
        began = time.perf_counter()
        result = driver.map(length)
        print(f"100 MB: {time.perf_counter() - began:.3f} s")
    assert staging.files == [StagingFile(f"{directory}/gpu-{driver.pid}-0", 102 * MB)]
    area = driver.mapping(result["address"])
    assert (area.path, area.perms) == (staging.files[0].path, "rw-s")
    assert area.end - area.start == length
    flags = driver.flags_at(result["address"])
    assert "dc" in flags, "a forked child must not keep it"
    assert "sh" in flags
    status = Path(staging.files[0].path).stat()
    assert (status.st_size, status.st_mode & 0o777) == (102 * MB, 0o600)
    assert status.st_blocks * 512 == 102 * MB
    assert Path(staging.files[0].path).read_bytes()[:1] == b"\x07"
    assert [path for path in processes.descriptors(driver.pid).values() if "gpu-" in path] == []
    assert result["last"] == 7


def test_several_calls_and_generations_get_a_file_each(driver, directory):
    stale = Path(f"{directory}/gpu-{driver.pid}-1")
    stale.write_text("of an earlier generation")
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as first:
        addresses = [driver.map(4 * MB)["address"], driver.map(6 * MB)["address"]]
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as second:
        addresses.append(driver.map(2 * MB)["address"])
    paths = [f"{directory}/gpu-{driver.pid}-{number}" for number in (0, 2, 3)]
    assert [file.path for file in first.files + second.files] == paths
    assert [file.length for file in first.files + second.files] == [4 * MB, 6 * MB, 2 * MB]
    assert [driver.mapping(address).path for address in addresses] == paths
    assert stale.read_text() == "of an earlier generation"


def test_the_thread_is_let_go_soon_after_the_call(driver, directory):
    status = Path(f"/proc/{driver.pid}/task/{driver.tid}/status")
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
        assert "TracerPid:\t0\n" not in status.read_text()
        driver.map(4 * MB, extra="calls")
        assert "TracerPid:\t0\n" in status.read_text()
    assert len(staging.files) == 1


@pytest.mark.parametrize(
    ("length", "flags"),
    [(1 * MB, CALL), (8 * MB, 0x22), (8 * MB, 0x21 | 0x8000)],
    ids=["small", "not populated", "shared"],
)
def test_other_calls_are_left_alone(driver, directory, length, flags):
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
        result = driver.map(length, flags)
    assert result["last"] == 7
    assert staging.files == []
    assert names(directory) == []


def test_a_block_without_any_call_changes_nothing(driver, directory):
    began = time.perf_counter()
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
        pass
    assert time.perf_counter() - began < 0.5
    assert staging.files == []
    assert private(driver, driver.map(4 * MB), 4 * MB)


def test_a_missing_directory_leaves_private_memory(driver, directory):
    with FileStaging(driver.tree, driver.pid, driver.tid, f"{directory}/none") as staging:
        assert private(driver, driver.map(8 * MB), 8 * MB)
    assert staging.files == []


def test_a_tmpfs_that_is_too_small_leaves_private_memory_and_no_file(small_tmpfs):
    with running() as driver:
        with FileStaging(driver.tree, driver.pid, driver.tid, small_tmpfs) as staging:
            assert private(driver, driver.map(64 * MB), 64 * MB)
            assert names(small_tmpfs) == []
            driver.map(4 * MB)
        assert [file.length for file in staging.files] == [4 * MB]


def test_a_file_that_the_process_cannot_open_leaves_private_memory_and_no_file(tmp_path, directory):
    if os.geteuid():
        pytest.skip("chroot needs root")
    with running(tmp_path) as driver:
        # Outside there is such a folder, in the process's own root there is none.
        tree = Tree(os.getpid(), 0, 0, 0, driver.pid, driver.pid, "")
        with FileStaging(tree, driver.pid, driver.tid, directory) as staging:
            assert private(driver, driver.map(8 * MB), 8 * MB)
        assert staging.files == []
        assert names(directory) == []


def test_a_limit_of_address_space_gives_the_error_that_the_call_would_have_given(driver, directory):
    resource.prlimit(driver.pid, resource.RLIMIT_AS, (1 << 30, 1 << 30))
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
        assert driver.map(1 << 30) == {"errno": 12}
        assert driver.map(4 * MB)["last"] == 7
    assert [file.length for file in staging.files] == [4 * MB]
    assert len(names(directory)) == 1


def test_a_thread_that_may_not_be_traced_leaves_private_memory(driver, directory, caplog):
    done, ready = threading.Event(), threading.Event()

    def trace():
        with Tracee(driver.pid, driver.tid) as tracee:
            ready.set()
            tracee.resume(7)
            done.wait()

    other = threading.Thread(target=trace)
    other.start()
    ready.wait()
    with (
        caplog.at_level(logging.INFO),
        FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging,
    ):
        assert private(driver, driver.map(4 * MB), 4 * MB)
    done.set()
    other.join()
    assert staging.files == []
    assert "private memory" in caplog.text


def test_a_refused_checkpoint_leaves_no_file(driver, directory):
    staging = FileStaging(driver.tree, driver.pid, driver.tid, directory)

    def refused():
        with staging:
            assert driver.map(4 * MB)["last"] == 7
            assert len(names(directory)) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        refused()
    assert names(directory) == []
    assert staging.files == []
    assert driver.map(4 * MB)["last"] == 7


def test_a_child_forked_meanwhile_does_not_keep_the_file(driver, directory):
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
        result = driver.map(4 * MB, extra="fork")
    try:
        child = processes.maps(result["child"])
        assert child
        assert not [area for area in child if area.path == staging.files[0].path]
    finally:
        os.kill(result["child"], signal.SIGKILL)


def test_signals_and_stops_pass_through(driver, directory):
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
        for _ in range(50):
            os.kill(driver.pid, signal.SIGUSR1)
            time.sleep(0.003)
        os.kill(driver.pid, signal.SIGSTOP)
        time.sleep(0.1)
        driver.ask(4 * MB)
        time.sleep(0.1)
        assert staging.files == []
        assert processes.state(driver.pid) == "T"
        os.kill(driver.pid, signal.SIGCONT)
        result = driver.answer()
    assert len(staging.files) == 1
    assert result["signals"] >= 40
    assert driver.map(4 * MB)["last"] == 7


def test_a_process_killed_meanwhile_ends_the_block(driver, directory):
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
        os.kill(driver.pid, signal.SIGKILL)
        driver.process.wait()
    assert staging.files == []


def test_a_hundred_blocks_in_a_row_leave_a_thread_that_works(driver, directory):
    began = time.perf_counter()
    for index in range(100):
        with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
            if index % 10 == 0:
                assert driver.map(2 * MB)["last"] == 7
        staging.discard()
    print(f"100 blocks: {time.perf_counter() - began:.2f} s")
    assert names(directory) == []
    assert driver.map(4 * MB)["last"] == 7
