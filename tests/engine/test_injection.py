"""System calls injected into real processes: each runs exactly once, and the process notices nothing."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from jupyter_gpuckpt.engine.injection import ptrace
from jupyter_gpuckpt.engine.injection.tracee import Tracee
from jupyter_gpuckpt.host import processes

NR_GETPID, NR_CLOSE, NR_GETTID, NR_OPENAT = 39, 3, 186, 257

COUNTER = """
    import sys, time
    count = 0
    while True:
        count += 1
        if count % 1000 == 0:
            print(count, flush=True)
            time.sleep(0.001)
"""


@contextlib.contextmanager
def target(code, **options):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )
    try:
        with process:
            try:
                yield process
            finally:
                process.kill()
    finally:
        process.wait()


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


def stop(process):
    os.kill(process.pid, signal.SIGSTOP)
    wait_for(lambda: processes.state(process.pid) == "T")


SLEEPER = "import time; print('ready', flush=True)\nwhile True: time.sleep(100)"

# Every delivery writes one byte: Python's own handlers would merge them. Real-time signals queue.
STORM_TARGET = """
    import os, signal, sys
    fd = int(sys.stdin.readline())
    os.set_blocking(fd, False)
    signal.set_wakeup_fd(fd, warn_on_full_buffer=True)
    for number in (signal.SIGRTMIN, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    print('ready', flush=True)
    while True:
        sum(range(1000))
"""
STORM = """
    import os, select, signal, sys
    pid, sent = int(sys.stdin.readline()), 0
    print('ready', flush=True)
    def waiting():
        with open(f'/proc/{pid}/status') as lines:
            return int(next(line for line in lines if line.startswith('SigQ')).split()[1].split('/')[0])
    while not select.select([sys.stdin], [], [], 0)[0]:
        # Linux drops signals beyond its limit without an error.
        if sent % 100 == 0 and waiting() > 5000:
            continue
        for number in (signal.SIGRTMIN, signal.SIGUSR1, signal.SIGCHLD):
            try:
                os.kill(pid, number)
                sent += number == signal.SIGRTMIN
            except BlockingIOError:
                pass
    print(sent, flush=True)
"""


def test_a_thousand_calls_run_under_a_signal_storm_and_no_signal_is_lost():
    ours, theirs = os.pipe()
    fcntl.fcntl(
        theirs, fcntl.F_SETPIPE_SZ, 1 << 20
    )  # a full pipe would lose some that were delivered
    received = 0

    def count():
        nonlocal received
        while data := os.read(ours, 1 << 16):
            received += data.count(signal.SIGRTMIN)

    with target(STORM_TARGET, pass_fds=[theirs]) as process, target(STORM) as storm:
        process.stdin.write(f"{theirs}\n")
        process.stdin.flush()
        os.close(theirs)
        assert process.stdout.readline() == "ready\n"
        counter = threading.Thread(target=count)
        counter.start()
        storm.stdin.write(f"{process.pid}\n")
        storm.stdin.flush()
        assert storm.stdout.readline() == "ready\n"
        began, results = time.monotonic(), []
        for _ in range(100):
            with Tracee(process.pid) as tracee:
                results += [tracee.syscall(NR_GETPID) for _ in range(10)]
        seconds = time.monotonic() - began
        storm.stdin.close()
        sent = int(storm.stdout.read())
        assert results == [process.pid] * 1000
        assert sent > 100
        wait_for(lambda: received == sent)
        assert process.poll() is None
    counter.join()
    os.close(ours)
    print(f"1000 injections, 100 stops, {sent} counted signals: {seconds:.2f} s")


CALLS = {
    "nanosleep": "libc.nanosleep(ctypes.byref(Time(1, 500_000_000)), None)",
    "poll": "libc.poll(None, 0, 1500)",
    "futex": "libc.syscall(202, ctypes.byref(ctypes.c_int(7)), 0, 7, ctypes.byref(Time(1, 500_000_000)), None, 0)",
    "read": "libc.read(0, ctypes.create_string_buffer(10), 10)",
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("stopped", [False, True], ids=["asleep", "stopped"])
def test_an_interrupted_call_goes_on_with_the_time_it_had_left(call, stopped):
    code = f"""
        import ctypes, time, sys
        class Time(ctypes.Structure):
            _fields_ = [('s', ctypes.c_long), ('ns', ctypes.c_long)]
        libc = ctypes.CDLL(None, use_errno=True)
        print('ready', flush=True)
        began = time.monotonic()
        result = {CALLS[call]}
        print([result, ctypes.get_errno() if result < 0 else 0, time.monotonic() - began], flush=True)
    """

    def in_time() -> bool:
        """Whether the call took no longer than it may; a machine that stands still meanwhile tells nothing."""
        with target(code) as process:
            assert process.stdout.readline() == "ready\n"
            ready = time.monotonic()
            time.sleep(0.1)
            if stopped:
                stop(process)
            while (last := time.monotonic() - ready) < 1.0:
                with Tracee(process.pid) as tracee:
                    assert tracee.syscall(NR_GETPID) == process.pid
                time.sleep(0.005)
            os.kill(process.pid, signal.SIGCONT)
            if call == "read":
                process.stdin.write("abc")
                process.stdin.flush()
            result, error, seconds = json.loads(process.stdout.readline())
        # ETIMEDOUT is what futex says when its time is over.
        assert (result, error) == {"futex": (-1, 110), "read": (3, 0)}.get(call, (0, 0))
        assert call == "read" or seconds > 1.48
        # A call that began anew at the last injection would take its whole time after that.
        return call == "read" or seconds < last + 1.5

    for _ in range(20):
        with contextlib.suppress(ProcessLookupError):  # it ended while the machine stood still
            if in_time():
                return
    pytest.fail("the call took longer each time")


def test_a_stopped_process_is_stopped_again_and_a_running_one_runs():
    with target(COUNTER) as process:
        process.stdout.readline()
        for _ in range(20):
            with Tracee(process.pid) as tracee:
                assert tracee.syscall(NR_GETPID) == process.pid
            assert processes.state(process.pid) in ("R", "S")
        stop(process)
        for _ in range(50):
            with Tracee(process.pid) as tracee:
                assert processes.state(process.pid) == "t"
                assert tracee.syscall(NR_GETPID) == process.pid
            assert processes.state(process.pid) == "T"
        with Tracee(process.pid):
            pass
        assert processes.state(process.pid) == "T"
        before = processes.context_switches(process.pid)
        time.sleep(0.05)
        assert processes.context_switches(process.pid) == before
        os.kill(process.pid, signal.SIGCONT)
        wait_for(lambda: processes.state(process.pid) in ("R", "S"))
        assert int(process.stdout.readline()) % 1000 == 0


def test_a_stop_signal_that_comes_meanwhile_stops_the_process_afterwards():
    with target(SLEEPER) as process:
        process.stdout.readline()
        with Tracee(process.pid) as tracee:
            assert tracee.syscall(NR_GETPID) == process.pid
            os.kill(process.pid, signal.SIGSTOP)
            assert [tracee.syscall(NR_GETPID) for _ in range(10)] == [process.pid] * 10
        wait_for(lambda: processes.state(process.pid) == "T")
        with Tracee(process.pid) as tracee:
            os.kill(process.pid, signal.SIGCONT)
            assert tracee.syscall(NR_GETPID) == process.pid
        wait_for(lambda: processes.state(process.pid) == "S")


@pytest.mark.parametrize("disposition", ["SIG_IGN", "SIG_DFL", "lambda *_: None"])
def test_the_signal_dispositions_and_masks_of_the_program_stay(disposition):
    code = f"""
        import signal, time
        signal.signal(signal.SIGTRAP, signal.{disposition})
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTRAP])
        print('ready', flush=True)
        while True: time.sleep(100)
    """.replace("signal.lambda", "lambda")

    def signals(pid):
        fields = processes.status(pid)
        return [fields[name] for name in ("SigBlk", "SigIgn", "SigCgt")]

    with target(code) as process:
        process.stdout.readline()
        before = signals(process.pid)
        with Tracee(process.pid) as tracee:
            assert tracee.syscall(NR_GETPID) == process.pid
        assert signals(process.pid) == before


def test_a_failing_call_raises_its_errno_and_the_next_one_works():
    with target(SLEEPER) as process:
        process.stdout.readline()
        with Tracee(process.pid) as tracee:
            with pytest.raises(OSError, match="Bad file descriptor") as caught:
                tracee.syscall(NR_CLOSE, 999)
            assert caught.value.errno == 9
            assert tracee.syscall(NR_GETPID) == process.pid


def test_borrowed_memory_reaches_the_call_and_is_given_back(tmp_path):
    path = os.fsencode(tmp_path / "made by the target") + b"\0"
    with target(SLEEPER) as process:
        process.stdout.readline()
        with Tracee(process.pid) as tracee:
            stack = ptrace.registers(process.pid).rsp
            before = tracee.read(stack - 4096, 8192)
            with tracee.borrowed(path) as address:
                assert address + len(path) <= stack - 128
                fd = tracee.syscall(NR_OPENAT, -100, address, os.O_CREAT | os.O_WRONLY, 0o600)
            assert processes.descriptors(process.pid)[fd] == path.rstrip(b"\0").decode()
            tracee.syscall(NR_CLOSE, fd)
            tracee.finish()
            assert tracee.read(stack - 4096, 8192) == before
            with pytest.raises(OSError, match="Input/output error"):
                tracee.read(8, 8)


def test_a_single_thread_can_be_chosen():
    code = """
        import threading, time
        threading.Thread(target=time.sleep, args=(100,)).start()
        print('ready', flush=True)
        time.sleep(100)
    """
    with target(code) as process:
        process.stdout.readline()
        wait_for(lambda: len(processes.threads(process.pid)) == 2)
        (tid,) = set(processes.threads(process.pid)) - {process.pid}
        with Tracee(process.pid, tid) as tracee:
            assert tracee.syscall(NR_GETTID) == tid
            wait_for(lambda: processes.state(process.pid) == "S")


def test_another_thread_of_ours_is_told_that_it_may_not():
    caught = []

    def other(tracee):
        with pytest.raises(RuntimeError, match="attached by thread"):
            tracee.syscall(NR_GETPID)
        caught.append(True)

    with target(SLEEPER) as process:
        process.stdout.readline()
        with Tracee(process.pid) as tracee:
            thread = threading.Thread(target=other, args=(tracee,))
            thread.start()
            thread.join()
            assert tracee.syscall(NR_GETPID) == process.pid
    assert caught == [True]


def test_gone_zombie_and_killed_processes_are_told_as_gone():
    process = subprocess.Popen(["/bin/true"])
    wait_for(lambda: processes.state(process.pid) == "Z")
    with pytest.raises(ProcessLookupError):
        Tracee(process.pid).attach()
    process.wait()
    with pytest.raises(ProcessLookupError):
        Tracee(process.pid).attach()
    with target(SLEEPER) as process:
        process.stdout.readline()
        with Tracee(process.pid) as tracee:
            tracee.syscall(NR_GETPID)
            os.kill(process.pid, signal.SIGKILL)
            # SIGKILL may come after one more call.
            with pytest.raises(ProcessLookupError):
                [tracee.syscall(NR_GETPID) for _ in range(1000)]
