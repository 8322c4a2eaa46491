"""A kernel that ends while it is saved: the error says so, whatever step fails first and however long the end takes."""

import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.errors import FreezeFailed, KernelLost
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.snapshots import save
from jupyter_gpuckpt.wire.progress import Progress, Stage
from tests.conftest import wait_for
from tests.parameters import some_slow
from tests.programs import COUNTER

#: Linux needs a while to free its memory.
LARGE = """
    import time
    memory = bytearray(b"x") * (200 << 20)
    print("ready", flush=True)
    time.sleep(600)
"""
#: The first thread ends, the process lives on.
WITHOUT_FIRST_THREAD = """
    import ctypes, threading, time

    def count():
        n = 0
        while True:
            n += 1
            print(n, flush=True)
            time.sleep(0.01)

    threading.Thread(target=count).start()
    ctypes.CDLL(None).pthread_exit(None)
"""


def kill_at(monkeypatch, stage, pid):
    """Kill a process of the kernel when a stage begins."""
    original = Progress.stage

    @contextmanager
    def staged(self, begun, *given, **named):
        if begun is stage:
            os.kill(pid, signal.SIGKILL)
        with original(self, begun, *given, **named) as inside:
            yield inside

    monkeypatch.setattr(Progress, "stage", staged)


@pytest.mark.parametrize(
    ("who", "stage", "stop"),
    some_slow(
        [
            (who, stage, stop)
            for who in ("kernel_pid", "keeper_pid", "init_pid")
            for stage in (Stage.PREFLIGHT, Stage.FREEZE, Stage.CAPTURE, Stage.STORE)
            for stop in (False, True)
            # What a save stores then may be complete before its source is gone.
            if stop or stage is not Stage.STORE
        ],
        {("keeper_pid", Stage.FREEZE, False), ("kernel_pid", Stage.STORE, True)},
    ),
)
def test_a_kernel_that_ends_while_it_is_saved_is_said_to_have_ended(
    run, monkeypatch, who, stage, stop
):
    program = run(LARGE)
    program.lines()
    with monkeypatch.context() as patched:
        kill_at(patched, stage, getattr(program.tree, who))
        with pytest.raises(KernelLost, match="ended while it was being saved") as caught:
            program.save(stop=stop)
    assert caught.value.details
    # Nothing is left to end, and only a killed init leaves no exit status.
    assert not launch.alive(program.tree)
    assert Path(program.tree.exit_path).exists() == (who != "init_pid")


@pytest.mark.parametrize("stop", [False, True])
def test_a_kernel_that_has_ended_but_was_not_reaped_is_not_saved(run, monkeypatch, stop):
    """Save a kernel whose parent was stopped before it reaped the kernel.

    CRIU dumps such a process without an error.
    """
    program = run(COUNTER)
    program.fresh_line()
    keeper_pid, original = program.tree.keeper_pid, save.wait_until

    def waiting(done, *, timeout):
        os.kill(keeper_pid, signal.SIGCONT)
        return original(done, timeout=timeout)

    monkeypatch.setattr(save, "wait_until", waiting)
    os.kill(keeper_pid, signal.SIGSTOP)
    wait_for(lambda: processes.state(keeper_pid) == "T")
    os.kill(program.tree.kernel_pid, signal.SIGKILL)
    wait_for(lambda: processes.state(program.tree.kernel_pid) == "Z")
    with pytest.raises(KernelLost, match="ended while it was being saved"):
        program.save(stop=stop)
    assert not launch.alive(program.tree)
    assert int(Path(program.tree.exit_path).read_text()) == signal.SIGKILL


def test_a_loss_is_told_when_the_exit_status_is_written(run, monkeypatch):
    program = run(COUNTER)
    program.fresh_line()
    init_pid, original = program.tree.init_pid, save.wait_until

    def waiting(done, *, timeout):
        assert not Path(program.tree.exit_path).exists()
        os.kill(init_pid, signal.SIGCONT)
        return original(done, timeout=timeout)

    monkeypatch.setattr(save, "wait_until", waiting)
    os.kill(init_pid, signal.SIGSTOP)
    os.kill(program.tree.kernel_pid, signal.SIGKILL)
    wait_for(lambda: not launch.pids(program.tree)[1:])
    with (
        pytest.raises(KernelLost, match="while it was being saved"),
        save.telling_a_loss(program.tree, "saved"),
    ):
        raise FreezeFailed("a step failed")
    assert int(Path(program.tree.exit_path).read_text()) == signal.SIGKILL


def test_a_kernel_that_runs_on_without_its_first_thread_has_not_ended(run):
    program = run(WITHOUT_FIRST_THREAD)
    program.fresh_line()
    wait_for(lambda: processes.state(program.tree.kernel_pid) == "Z")
    with pytest.raises(FreezeFailed) as caught, save.telling_a_loss(program.tree, "saved"):
        raise FreezeFailed("a step failed")
    assert caught.value.message == "a step failed"
    program.fresh_line()
