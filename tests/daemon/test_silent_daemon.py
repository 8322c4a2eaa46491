"""A daemon that runs but does not answer, as commands and clients meet it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from jupyter_gpuckpt.client import starting
from jupyter_gpuckpt.errors import DaemonSilent
from jupyter_gpuckpt.wire import calls
from tests.conftest import wait_for

#: For what took 100 seconds. That it takes 2 is a matter of `calls.ALIVE_SECONDS`.
FEW_SECONDS = 30.0


@pytest.fixture
def daemon_env(emptied_daemon_env):
    return emptied_daemon_env


@pytest.fixture
def stopped(client):
    """Yield the pid of a daemon that is stopped, and runs on after the test."""
    pid = client.send(calls.handshake()).pid
    os.kill(pid, signal.SIGSTOP)
    yield pid
    os.kill(pid, signal.SIGCONT)


@contextmanager
def begun(daemon_env, *words):
    """Run a command; yield its process, whose pipes are closed afterwards."""
    with subprocess.Popen(
        [sys.executable, "-m", "jupyter_gpuckpt.cli", *words],
        env=daemon_env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        yield program


def test_commands_that_read_say_soon_that_the_daemon_does_not_answer(daemon_env, stopped):
    assert calls.ALIVE_SECONDS <= 2
    for word in ("ps", "list", "doctor"):
        began = time.monotonic()
        with begun(daemon_env, word) as program:
            # The doctor says it first, and goes on with its other checks.
            line = program.stderr.readline()
            assert time.monotonic() - began < FEW_SECONDS
            assert "gpuckptd does not answer" in line, word
            told, out = line + program.stderr.read(), program.stdout.read()
            assert f"kill -CONT {stopped}" in told
            assert program.wait(300) == 7
        assert "Kernels can be saved here" not in out
    assert "Kernels cannot be saved here: gpuckptd does not answer" in out


def test_a_daemon_that_was_stopped_is_not_waited_for(settings, stopped, monkeypatch):
    monkeypatch.setattr(calls, "ALIVE_SECONDS", 2 * FEW_SECONDS)
    began = time.monotonic()
    with pytest.raises(DaemonSilent, match=f"stopped by a signal .process {stopped}"):
        starting.require_answer(starting.target(settings, start=False), calls.ALIVE_SECONDS)
    assert time.monotonic() - began < FEW_SECONDS


def test_a_suspend_waits_until_the_daemon_answers_again(daemon_env, client, kernel, stopped):
    with begun(daemon_env, "suspend", kernel.kernel_id) as suspend:
        assert "It is waited for." in suspend.stderr.readline()
        os.kill(stopped, signal.SIGCONT)
        assert suspend.wait(300) == 0, suspend.stderr.read()
    assert client.send(calls.kernel(kernel.kernel_id)).state == "suspended"


def test_a_launch_that_nobody_waits_for_any_more_leaves_no_kernel(
    settings, client, owner, spec, stopped
):
    call = calls.launch(owner.owner_id, wanted := spec())
    with pytest.raises(DaemonSilent):
        client.send(replace(call, seconds=0.5))
    os.kill(stopped, signal.SIGCONT)
    wait_for(lambda: f"killed kernel {wanted.kernel_id}" in settings.log_file.read_text())
    assert client.send(calls.kernels()) == []
