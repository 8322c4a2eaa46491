"""All threads of a process but one held still, and inherited devices taken from one."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from jupyter_gpuckpt.engine.gpu.driver.release import release
from jupyter_gpuckpt.engine.injection.threads_held import ThreadsHeld
from jupyter_gpuckpt.engine.injection.tracee import Tracee
from jupyter_gpuckpt.errors import CheckpointError
from jupyter_gpuckpt.host import processes

# Counts in shared memory: what another process can see without asking anybody.
COUNTERS = """
    import mmap, struct, sys, threading, time
    memory = mmap.mmap(int(sys.stdin.readline()), 4096)
    def count(index):
        number = 0
        while True:
            number += 1
            struct.pack_into('Q', memory, 8 * index, number)
            time.sleep(0.0002)
    threads = [threading.Thread(target=count, args=(index,)) for index in range(1, 6)]
    for thread in threads:
        thread.start()
    print([thread.native_id for thread in threads], flush=True)
    count(0)
"""
SPAWNER = """
    import threading, time
    def spawn():
        time.sleep(0.001)
        threading.Thread(target=spawn).start()
    for _ in range(20):
        threading.Thread(target=spawn).start()
    print('ready', flush=True)
    time.sleep(100)
"""


@contextlib.contextmanager
def target(code, *words, **options):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


def stop(pid):
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: all(processes.state(tid) == "T" for tid in processes.threads(pid)))


@pytest.fixture
def counters():
    """(process, tids of its five counting threads, function giving all six counts; index 0 is the main thread's)."""
    fd = os.memfd_create("counters")
    os.truncate(fd, 4096)
    with target(COUNTERS, pass_fds=[fd]) as process:
        process.stdin.write(f"{fd}\n")
        process.stdin.flush()
        tids = json.loads(process.stdout.readline())

        def counts():
            data = os.pread(fd, 48, 0)
            return [int.from_bytes(data[at : at + 8], sys.byteorder) for at in range(0, 48, 8)]

        wait_for(lambda: all(counts()))
        yield process, tids, counts
    os.close(fd)


def moved(counts, seconds=0.15):
    before = counts()
    time.sleep(seconds)
    return [after > first for first, after in zip(before, counts(), strict=True)]


def test_held_threads_do_not_move_and_go_on_afterwards(counters):
    process, _, counts = counters
    with ThreadsHeld(process.pid) as held:
        assert held.tids == processes.threads(process.pid)
        assert moved(counts) == [False] * 6
    wait_for(lambda: all(moved(counts)))


def test_one_thread_of_a_stopped_process_runs_after_sigcont_the_others_only_when_released(counters):
    process, tids, counts = counters
    ran = False
    for _ in range(30):
        stop(process.pid)
        with ThreadsHeld(process.pid, tids[2]):
            before = counts()
            os.kill(process.pid, signal.SIGCONT)
            until = time.monotonic() + 3
            while time.monotonic() < until and not ran:
                ran = counts()[3] > before[3] + 10
                time.sleep(0.01)
            # What counts is that no other moves.
            assert [*counts()[:3], *counts()[4:]] == [*before[:3], *before[4:]]
        wait_for(lambda: all(moved(counts)))
        if ran:
            return
    pytest.fail("it never ran, though a thread that stands still cannot hold the GIL each time")


def test_without_sigcont_a_stopped_process_is_stopped_afterwards(counters):
    process, tids, counts = counters
    stop(process.pid)
    with ThreadsHeld(process.pid, tids[2]):
        assert moved(counts) == [False] * 6
    wait_for(lambda: {processes.state(tid) for tid in processes.threads(process.pid)} == {"T"})
    assert moved(counts) == [False] * 6
    os.kill(process.pid, signal.SIGCONT)
    wait_for(lambda: all(moved(counts)))


def test_threads_that_come_and_go_are_all_caught():
    with target(SPAWNER) as process:
        process.stdout.readline()
        for _ in range(20):
            with ThreadsHeld(process.pid) as held:
                tids = processes.threads(process.pid)
                live = [tid for tid in tids if processes.state(tid) not in (None, "Z", "X")]
                assert set(live) <= set(held.tids)
                time.sleep(0.01)
                # Those that had ended may be gone.
                assert set(live) <= set(processes.threads(process.pid)) <= set(tids)
        assert process.poll() is None


def test_a_process_whose_main_thread_has_ended_can_be_held():
    code = """
        import ctypes, threading, time
        threading.Thread(target=time.sleep, args=(100,)).start()
        print('ready', flush=True)
        ctypes.CDLL(None).pthread_exit(None)
    """
    with target(code) as process:
        process.stdout.readline()
        wait_for(lambda: processes.state(process.pid) == "Z")
        with ThreadsHeld(process.pid) as held:
            assert process.pid not in held.tids
            assert len(held.tids) == 1
            assert held.tracee().syscall(39) == process.pid


def test_a_thread_that_somebody_else_traces_lets_the_others_go(counters):
    process, tids, counts = counters
    done, ready = threading.Event(), threading.Event()

    def trace():
        with Tracee(process.pid, tids[-1]):
            ready.set()
            done.wait()

    thread = threading.Thread(target=trace)
    thread.start()
    ready.wait()
    with pytest.raises(CheckpointError, match="could not be stopped"):
        ThreadsHeld(process.pid).__enter__()
    done.set()
    thread.join()
    wait_for(lambda: all(moved(counts)))


HOLDER = """
    import mmap, os, sys, threading, time
    files = [os.open(sys.argv[1] + str(n), os.O_RDWR | os.O_CREAT) for n in range(30)]
    for fd in files:
        os.ftruncate(fd, 8192)
    maps = [mmap.mmap(fd, 8192) for fd in files]   # mmap keeps a descriptor of its own
    other = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
    for _ in range(3):
        threading.Thread(target=time.sleep, args=(100,)).start()
    print('ready', flush=True)
    for line in sys.stdin:
        os.write(other, line.encode())
        print('alive', flush=True)
"""


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_inherited_devices_are_released_and_the_process_goes_on(tmp_path, stopped):
    prefix, other = f"{tmp_path}/nvidia", tmp_path / "other"
    with target(HOLDER, prefix, other) as process:
        process.stdout.readline()
        if stopped:
            stop(process.pid)
        began = time.monotonic()
        released = release(process.pid, devices=prefix)
        print(f"released in {time.monotonic() - began:.4f} s")
        assert released == (60, 30)
        held = [*processes.descriptors(process.pid).values()]
        held += [area.path for area in processes.maps(process.pid)]
        assert not [path for path in held if path.startswith(prefix)]
        assert release(process.pid, devices=prefix) == (0, 0)
        if stopped:
            wait_for(lambda: processes.state(process.pid) == "T")
            os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("hello\n")
        process.stdin.flush()
        assert process.stdout.readline() == "alive\n"
        assert other.read_text() == "hello\n"


def test_releasing_a_process_that_is_gone_or_holds_nothing_does_nothing():
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    assert release(process.pid) == (0, 0)
    assert release(os.getpid()) == (0, 0)
