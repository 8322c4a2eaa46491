"""Signals that stop everything around a kernel do not end it; signals that are meant for it do. It sees nothing of it."""

import os
import signal
import sys
from pathlib import Path

import pytest

from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.wire import calls

#: Forks a worker, starts a program, says what it finds, and then does what it is told.
PROGRAM = """
import json, os, signal, subprocess, sys, time
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, signal.getsignal(signal.SIGTERM)
assert signal.signal(signal.SIGHUP, signal.SIG_DFL) is signal.SIG_DFL
asked = signal.signal(signal.SIGTERM, lambda *_: None)
assert asked is signal.SIG_DFL and signal.signal(signal.SIGTERM, asked) is not None
worker = os.fork()
if not worker:
    time.sleep(1000)
program = subprocess.Popen(["sleep", "1000"])
shown = subprocess.run(["env"], capture_output=True, text=True).stdout
assert "outside-signals" not in shown, shown
told = {
    "preload": os.environ.get("LD_PRELOAD"),
    "worker": worker,
    "program": program.pid,
}
path = sys.argv[1]
with open(path + ".told", "w") as file:
    json.dump(told, file)
count = 0
while True:
    count += 1
    with open(path, "w") as file:
        file.write(str(count))
    if os.path.exists(path + ".do"):
        with open(path + ".do") as file:
            code = file.read()
        os.unlink(path + ".do")
        with open(path + ".did", "w") as file:
            file.write(repr(eval(code)))
    time.sleep(0.01)
"""


@pytest.fixture
def daemon_env(emptied_daemon_env):
    return emptied_daemon_env


@pytest.fixture
def program(client, owner, spec, short_dir, counts, eventually):
    def start(**env):
        wanted = spec()
        wanted.argv[:] = [sys.executable, "-c", PROGRAM, str(short_dir / wanted.kernel_id)]
        wanted.env.update(env)
        kernel = client.send(calls.launch(owner.owner_id, wanted))
        log = short_dir / f"{kernel.kernel_id}.log"
        eventually(lambda: counts(kernel.kernel_id) or log.read_text())
        assert log.read_text() == ""
        return kernel

    return start


@pytest.fixture
def goes_on(counts, eventually):
    def check(kernel):
        before = counts(kernel.kernel_id)
        eventually(lambda: counts(kernel.kernel_id) > before + 2)
        return True

    return check


@pytest.fixture
def evaluate(short_dir, eventually):
    def ask(kernel, code):
        path = short_dir / kernel.kernel_id
        Path(f"{path}.new").write_text(code)
        Path(f"{path}.new").rename(f"{path}.do")
        answer = Path(f"{path}.did")
        eventually(lambda: answer.exists() and answer.read_text())
        text = answer.read_text()
        answer.unlink()
        return text

    return ask


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_from_outside_does_not_end_a_kernel(client, program, goes_on, signum):
    kernel = program()
    for pid in [kernel.init_pid, *processes.descendants(kernel.init_pid)]:
        if processes.name(pid) != "sleep":
            os.kill(pid, signum)
    assert goes_on(kernel)
    assert len(processes.children(kernel.pid)) == 2
    client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
    os.kill(client.send(calls.kernel(kernel.kernel_id)).pid, signum)
    assert goes_on(kernel)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_through_the_daemon_ends_it(client, program, eventually, signum):
    kernel = program()
    client.send(calls.signal(kernel.kernel_id, signum))
    eventually(lambda: client.send(calls.kernels()) == [])
    assert int(Path(kernel.exit_path).read_text()) == signum


def test_its_own_signals_work(client, program, evaluate, eventually, short_dir):
    kernel = program()
    told = evaluate(kernel, "[os.kill(pid, 15) for pid in (worker, program.pid)]")
    assert told == "[None, None]"
    assert evaluate(kernel, "os.waitpid(worker, 0)[1]") == "15"
    assert evaluate(kernel, "program.wait()") == "-15"
    (short_dir / f"{kernel.kernel_id}.do").write_text("os.kill(os.getpid(), 15)")
    eventually(lambda: client.send(calls.kernels()) == [])
    assert int(Path(kernel.exit_path).read_text()) == signal.SIGTERM


def test_what_the_user_preloads_stays(program, evaluate):
    libc = next(area.path for area in processes.maps(os.getpid()) if "libc.so" in area.path)
    kernel = program(LD_PRELOAD=libc)
    assert evaluate(kernel, "os.environ.get('LD_PRELOAD')") == repr(libc)
    assert evaluate(kernel, "told['preload']") == repr(libc)


def test_nothing_of_it_is_in_the_environment(program, evaluate):
    assert evaluate(program(), "told['preload']") == "None"
