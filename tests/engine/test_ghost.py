"""Ghosts of real processes: the memory of then, no descriptors, no trace left behind."""

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from jupyter_gpuckpt.engine.injection.tracee import Tracee
from jupyter_gpuckpt.engine.memory.ghost import Ghost
from jupyter_gpuckpt.errors import FreezeFailed
from jupyter_gpuckpt.host import processes

# A keeper: a subreaper that reaps whatever comes and tells what it reaped. Its child is the program that gets a ghost.
KEEPER = """
    import ctypes, os, subprocess, sys
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    fds = [int(fd) for fd in sys.argv[2:]]
    child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], pass_fds=fds)
    for fd in fds:
        os.close(fd)
    print('child', child.pid, flush=True)
    while True:
        try:
            print(os.wait()[0], file=sys.stderr, flush=True)
        except ChildProcessError:
            break
"""
# Rewrites its page with the number that it reads; says what os.wait() says.
PROGRAM = """
    import ctypes, os, sys
    page = ctypes.create_string_buffer(b'old' * 1000)
    print(ctypes.addressof(page), flush=True)
    while line := sys.stdin.readline():
        page.value = line.encode().strip() * 1000
        try:
            waited = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            waited = 'no child'
        print(waited, flush=True)
"""


class Program:
    """A program under a keeper; `address` is that of its page, `fds` are inherited by both."""

    def __init__(self, stack, code=PROGRAM, fds=()):
        self.keeper = stack.enter_context(
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    textwrap.dedent(KEEPER),
                    textwrap.dedent(code),
                    *map(str, fds),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                pass_fds=fds,
            )
        )
        stack.callback(self.end)
        # Both write to the same pipe, and either may be first.
        lines = [self.keeper.stdout.readline().strip() for _ in range(2)]
        [told] = [line for line in lines if line.startswith("child ")]
        [self.first] = [line for line in lines if line != told]
        self.pid = int(told.split()[1])

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.keeper.kill()

    def stop(self):
        os.kill(self.pid, signal.SIGSTOP)
        wait_for(lambda: processes.state(self.pid) == "T")

    def write(self, text):
        self.keeper.stdin.write(f"{text}\n")
        self.keeper.stdin.flush()
        return self.keeper.stdout.readline().strip()


@pytest.fixture
def stack():
    with contextlib.ExitStack() as resources:
        yield resources


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


class IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def memory_of(pid, address, length):
    buffer = ctypes.create_string_buffer(length)
    local, remote = IoVec(ctypes.addressof(buffer), length), IoVec(int(address), length)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) != length:
        raise OSError(ctypes.get_errno(), "process_vm_readv")
    return buffer.raw


@pytest.mark.parametrize("stopped", [False, True], ids=["asleep", "stopped"])
def test_a_ghost_holds_the_old_memory_while_the_program_rewrites_it(stack, stopped):
    program = Program(stack)
    if stopped:
        program.stop()
    with Ghost(program.pid) as ghost:
        wait_for(lambda: processes.state(program.pid) == ("T" if stopped else "S"))
        assert processes.state(ghost.pid) == "t"
        assert processes.parent(ghost.pid) == program.keeper.pid
        os.kill(program.pid, signal.SIGCONT)
        assert program.write("new") == "no child", "the program must not see its twin"
        assert memory_of(program.pid, program.first, 9) == b"newnewnew"
        assert memory_of(ghost.pid, program.first, 9) == b"oldoldold"
        assert ghost.alive
    assert not ghost.alive
    assert program.write("six") == "no child"


@pytest.mark.parametrize("stopped", [False, True], ids=["asleep", "stopped"])
def test_a_dropped_ghost_leaves_no_zombie_and_a_stopped_keeper_reaps_it_later(stack, stopped):
    program = Program(stack)
    if stopped:
        program.stop()
        os.kill(program.keeper.pid, signal.SIGSTOP)
        wait_for(lambda: processes.state(program.keeper.pid) == "T")
    ghosts = []
    for _ in range(5):
        ghost = Ghost(program.pid)
        ghosts.append(ghost.pid)
        ghost.drop()
        ghost.drop()
    if stopped:
        os.kill(program.keeper.pid, signal.SIGCONT)
    # The keeper is the real parent: it gets each of them once, after us.
    assert [int(program.keeper.stderr.readline()) for _ in ghosts] == ghosts
    assert processes.children(program.keeper.pid) == [program.pid]


@pytest.mark.parametrize("stopped", [False, True], ids=["asleep", "stopped"])
def test_a_ghost_holds_no_descriptors(stack, stopped, tmp_path):
    ours, theirs = os.pipe()
    stack.callback(os.close, ours)
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    program = Program(stack, fds=(theirs, lock))
    os.close(theirs)
    os.close(lock)
    if stopped:
        program.stop()
    with Ghost(program.pid) as ghost:
        assert processes.descriptors(ghost.pid) == {}
        assert processes.descriptors(program.pid)
        other = os.open(tmp_path / "lock", os.O_RDWR)
        stack.callback(os.close, other)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert select.select([ours], [], [], 0)[0] == []
        os.kill(program.pid, signal.SIGKILL)
        wait_for(lambda: not processes.exists(program.pid))
        assert os.read(ours, 1) == b"", "the pipe must end with the program, not with its ghost"
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert ghost.alive
        assert memory_of(ghost.pid, program.first, 3) == b"old"


def test_a_ghost_is_the_first_to_go_when_memory_is_short_and_says_so(stack):
    program = Program(stack)
    with Ghost(program.pid) as ghost:
        assert Path(f"/proc/{ghost.pid}/oom_score_adj").read_text() == "1000\n"
        os.kill(ghost.pid, signal.SIGKILL)
        wait_for(lambda: not ghost.alive)
        wait_for(lambda: not processes.exists(ghost.pid))
        with pytest.raises(OSError, match="process_vm_readv") as caught:
            memory_of(ghost.pid, program.first, 3)
        assert caught.value.errno == errno.ESRCH
    assert program.write("x") == "no child"


def test_signals_do_not_wake_a_ghost(stack):
    program = Program(stack)
    with Ghost(program.pid) as ghost:
        for number in (signal.SIGCONT, signal.SIGUSR1, signal.SIGTERM, signal.SIGSTOP):
            os.kill(ghost.pid, number)
        time.sleep(0.05)
        assert ghost.alive
        assert processes.state(ghost.pid) == "t"


def test_a_ghost_dies_with_the_process_that_made_it(stack):
    program = Program(stack)
    code = "import sys, time; from jupyter_gpuckpt.engine.memory.ghost import Ghost; "
    code += "print(Ghost(int(sys.argv[1])).pid, flush=True); time.sleep(100)"
    maker = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-c", code, str(program.pid)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    )
    pid = int(maker.stdout.readline())
    assert processes.state(pid) == "t"
    maker.kill()
    maker.wait()
    wait_for(lambda: not processes.exists(pid))
    assert program.write("x") == "no child"


def test_a_program_of_many_threads_and_one_whose_main_thread_has_ended_get_ghosts(stack):
    code = """
        import ctypes, threading, time
        for _ in range(8):
            threading.Thread(target=time.sleep, args=(100,)).start()
        print('ready', flush=True)
        ctypes.CDLL(None).pthread_exit(None)
    """
    program = Program(stack, code)
    wait_for(lambda: processes.state(program.pid) == "Z")
    with Ghost(program.pid) as ghost:
        assert processes.threads(ghost.pid) == [ghost.pid]
        assert len(processes.maps(ghost.pid)) > 10
    assert len(processes.threads(program.pid)) == 9


def test_what_cannot_get_a_ghost_is_told_with_a_reason(stack):
    program = Program(stack)
    with Ghost(program.pid) as ghost, pytest.raises(FreezeFailed, match="twin") as caught:
        Ghost(ghost.pid)
    assert "debugger" in caught.value.hint
    with Tracee(program.pid), pytest.raises(FreezeFailed):
        Ghost(program.pid)
    program.end()
    wait_for(lambda: processes.state(program.pid) in (None, "Z"))
    with pytest.raises(FreezeFailed, match="twin"):
        Ghost(program.pid)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ghost-of")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root has no limit of processes")
def test_a_reached_limit_of_processes_is_named(stack):
    program = Program(stack)
    resource.prlimit(program.pid, resource.RLIMIT_NPROC, (0, 0))
    with pytest.raises(FreezeFailed) as caught:
        Ghost(program.pid)
    assert "ulimit -u" in caught.value.hint
