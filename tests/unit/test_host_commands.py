"""host.commands: programs are run by the same rules, and nothing of them is left behind."""

import os
import signal
import subprocess
import time

import pytest

from jupyter_gpuckpt.host import commands, processes
from tests.conftest import wait_for


def test_a_run_gives_status_output_and_seconds():
    done = commands.run(["sh", "-c", "echo out; echo err >&2; sleep 0.05"], timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "err")
    assert 0.05 <= done.seconds < 5


def test_stdin_is_empty_unless_given():
    assert commands.run(["cat"], timeout=300).stdout == ""
    assert commands.run(["cat"], timeout=300, input=b"abc").stdout == "abc"


def test_input_and_output_larger_than_a_pipe_do_not_block():
    data = b"x" * (4 << 20)
    assert len(commands.run(["cat"], timeout=300, input=data).stdout) == len(data)


def test_a_bad_status_is_an_error_with_the_end_of_stderr():
    script = "i=0; while [ $i -lt 3000 ]; do echo line $i >&2; i=$((i+1)); done; exit 7"
    with pytest.raises(commands.CommandFailed) as caught:
        commands.run(["sh", "-c", script], timeout=300)
    assert (caught.value.program, caught.value.returncode) == ("sh", 7)
    assert caught.value.tail.endswith("line 2999")
    assert len(caught.value.tail) <= commands.TAIL_BYTES + 4
    assert not caught.value.timed_out


def test_a_bad_status_is_a_value_when_it_is_not_checked():
    assert commands.run(["false"], timeout=300, check=False).returncode == 1


def test_arguments_do_not_show_in_an_error():
    with pytest.raises(commands.CommandFailed) as caught:
        commands.run(["sh", "-c", "exit 1", "secret"], timeout=300)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("program", "returncode"), [("no-such-program-anywhere", 127), ("/etc/passwd", 126)]
)
def test_a_program_that_cannot_be_run_is_an_error_as_shells_number_it(program, returncode):
    with pytest.raises(commands.CommandFailed) as caught:
        commands.run([program], timeout=300)
    assert caught.value.returncode == returncode


def test_a_deadline_kills_the_whole_group_and_reaps_it(tmp_path):
    pids = tmp_path / "pids"
    script = f"sleep 10000 & echo $$ $! > {pids}; wait"
    # A slow machine may take long to begin.
    for seconds in (0.3, 3, 30, 100):
        began = time.monotonic()
        with pytest.raises(commands.CommandFailed) as caught:
            commands.run(["sh", "-c", script], timeout=seconds)
        assert caught.value.timed_out
        assert time.monotonic() - began < seconds + 600
        if pids.exists() and pids.read_text():
            break
    shell, sleeper = map(int, pids.read_text().split())
    assert not processes.exists(shell)
    # The sleeper is not our child: whoever adopts it reaps it.
    wait_for(lambda: not processes.alive(sleeper))


def test_a_child_left_behind_does_not_hold_up_the_run(tmp_path):
    pid = tmp_path / "pid"
    began = time.monotonic()
    commands.run(["sh", "-c", f"sleep 10000 & echo $! > {pid}"], timeout=1000)
    assert time.monotonic() - began < 500
    os.kill(int(pid.read_text()), signal.SIGKILL)


def test_the_environment_is_clean(monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    lines = commands.run(["env"], timeout=300).stdout.splitlines()
    assert not any(line.startswith("LD_LIBRARY_PATH=") for line in lines)
    assert "PATH=/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin" in lines
    assert commands.run(["/usr/bin/env"], timeout=300, env={"A": "1"}).stdout == "A=1\n"


def test_a_spawned_program_leads_a_session_of_its_own_and_has_only_passed_descriptors():
    reader, writer = os.pipe()
    process = commands.spawn(["sleep", "10000"], pass_fds=[writer])
    try:
        assert processes.session(process.pid) == process.pid
        assert processes.process_group(process.pid) == process.pid
        # Until it sleeps, the loader has its libraries open now and then.
        deadline = time.monotonic() + 120
        while (found := set(processes.descriptors(process.pid))) != {0, 1, 2, writer}:
            assert time.monotonic() < deadline, found
            time.sleep(0.01)
        assert commands.wait(process, 0.01) is None
    finally:
        commands.stop(process)
        os.close(reader)
        os.close(writer)
    assert process.returncode == -signal.SIGKILL
    commands.stop(process)  # the second time nothing happens


def test_waiting_wakes_as_soon_as_the_program_ends():
    process = commands.spawn(["sleep", "0.2"], stdout=subprocess.DEVNULL)
    began = time.monotonic()
    assert commands.wait(process, 1000) == 0
    assert time.monotonic() - began < 500
    assert commands.wait(process, 1000) == 0
