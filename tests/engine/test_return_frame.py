"""Tracers that die with somebody's thread in their hands: the thread goes on by itself."""

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from jupyter_gpuckpt.engine.gpu.driver.gpu_staging import FileStaging
from jupyter_gpuckpt.engine.injection import ptrace
from jupyter_gpuckpt.engine.injection.tracee import Tracee
from jupyter_gpuckpt.host import processes

NR_CLOSE, NR_GETPID, NR_OPENAT = 3, 39, 257
MB = 1 << 20

#: Each prints a line now and then, and ends when something is not as it should be.
VICTIMS = {
    "computes": """
        import faulthandler, numpy
        faulthandler.enable()  # uses the alternative signal stack
        numbers = numpy.arange(1000, dtype=numpy.float64)
        expected = (numbers * 1.5 + 2.0).sum()
        while True:
            for _ in range(2000):
                assert (numbers * 1.5 + 2.0).sum() == expected
            print("fine", flush=True)
    """,
    "sleeps": """
        import time
        while True:
            before = time.monotonic()
            time.sleep(0.02)
            assert time.monotonic() - before >= 0.02
            print("fine", flush=True)
    """,
    "polls": """
        import os, select
        reader, writer = os.pipe()
        poller = select.poll()
        poller.register(reader)
        while True:
            assert poller.poll(20) == []
            print("fine", flush=True)
    """,
    "handles signals": """
        import os, signal, threading, time
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
        signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        while True:
            before = len(seen)
            while len(seen) < before + 5:
                time.sleep(0.001)
            assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
            print("fine", flush=True)
    """,
}


@contextlib.contextmanager
def target(code):
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def dying(count, work):
    """Return the id of a child of ours that does `work`, and dies by SIGKILL right after its count-th ptrace request."""
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            requests = itertools.count(1)
            request = ptrace.request

            def counted(*arguments, **named):
                result = request(*arguments, **named)
                if next(requests) == count:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            ptrace.request = counted
            work()
            os._exit(0)
        os._exit(1)
    return child


def died(child):
    """Whether it came as far as to its death."""
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL)
    return bool(status)


def inject(pid):
    with Tracee(pid, return_frame=True) as tracee:
        with tracee.borrowed(b"/dev/null\0") as path:
            fd = tracee.syscall(NR_OPENAT, -100, path, os.O_RDONLY, 0)
        tracee.syscall(NR_CLOSE, fd)


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_thread_goes_on_by_itself_when_its_tracer_dies_at_any_request(victim):
    with target(VICTIMS[victim]) as process:
        assert process.stdout.readline() == "fine\n"
        count = 1
        while died(dying(count, lambda: inject(process.pid))):
            assert process.stdout.readline() == "fine\n", f"after request {count}"
            assert process.stdout.readline() == "fine\n", f"after request {count}"
            count += 1
        assert count > 20
        assert processes.status(process.pid)["SigBlk"] == "0" * 16


def test_a_thread_goes_on_by_itself_when_its_tracer_is_killed_at_random():
    with target(VICTIMS["computes"]) as process:
        assert process.stdout.readline() == "fine\n"
        for _ in range(60):
            child = os.fork()
            if not child:
                while True:
                    with Tracee(process.pid, return_frame=True) as tracee:
                        tracee.syscall(NR_GETPID)
            time.sleep(random.uniform(0.001, 0.02))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            assert process.stdout.readline() == "fine\n"


def test_what_lay_below_the_stack_comes_back():
    with target(VICTIMS["sleeps"]) as process:
        process.stdout.readline()
        with Tracee(process.pid, return_frame=True) as tracee:
            stack = ptrace.registers(process.pid).rsp
            start, length = stack - 40_000, 40_000
            before = tracee.read(start, length)
            tracee.syscall(NR_GETPID)
            assert tracee.read(start, length) != before
            tracee.finish()
            assert tracee.read(start, length) == before


def test_the_driver_gets_its_memory_when_its_tracer_dies_at_any_request(driver, directory):
    for count in itertools.count(1):
        ready, tell_ready = os.pipe()
        done, tell_done = os.pipe()

        def stage(tell_ready=tell_ready, done=done, tell_done=tell_done):
            os.close(tell_done)
            with FileStaging(driver.tree, driver.pid, driver.tid, directory):
                os.close(tell_ready)
                os.read(done, 1)

        child = dying(count, stage)
        os.close(tell_ready)
        os.close(done)
        os.read(ready, 1)  # it traces the thread, or is dead
        result = driver.map(4 * MB)
        assert result["last"] == 7, f"after request {count}"
        os.close(tell_done)
        os.close(ready)
        alive = not died(child)
        for tid in processes.threads(driver.pid):
            assert processes.status(tid)["SigBlk"] == "0" * 16
        if alive:
            break
    assert count > 30
