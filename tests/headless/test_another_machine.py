"""Runs that are continued on another machine: by a shared data directory, and by a remote."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import end_everything_below, environment, folder_of_a_daemon, wait_for
from tests.server.test_another_machine import BOOT, NAMESPACES

from .running import CELLS, Runner, write_notebook
from .test_execute import AT_FIRST, AT_SECOND, EXPECTED, outputs

pytestmark = pytest.mark.slow


def test_a_run_goes_on_where_a_port_of_its_kernel_is_taken(daemon_env, short_dir):
    """Both machines have the same home; a program of the second one listens on a port that the kernel had on the first one."""
    if os.geteuid() or subprocess.run(["unshare", *NAMESPACES, "true"], check=False).returncode:
        pytest.skip("namespaces cannot be made here")
    runtime = short_dir / "run"
    runtime.mkdir()
    boot = ("unshare", *NAMESPACES, "sh", "-c", BOOT, "sh")
    notebook = write_notebook(short_dir / "notebook.ipynb", CELLS)
    runner = Runner(daemon_env, notebook, short_dir / "out.ipynb")
    # A shell that waits for the run would end its machine at once when it is stopped; the run stops itself here.
    stop = 'trap "kill -TERM \\$!; wait \\$!; exit" USR1; "$@" & wait $!'
    runner.start(within=[*boot, "first", str(runtime), "--", "bash", "-c", stop, "bash"])
    wait_for(lambda: runner.has_shown(AT_FIRST))
    [shell] = children(runner.process.pid)
    os.kill(shell, signal.SIGUSR1)
    runner.ended()
    [record] = short_dir.glob("data/state/kernels/*/record.json")
    assert json.loads(record.read_text())["state"] == "suspended"
    taken = json.loads(record.read_text())["spec"]["own_ports"][0]
    runner.open_gate(10)
    runner.open_gate(20)
    with socket.create_server(("127.0.0.1", taken)):
        runner.start(within=[*boot, "second", str(runtime), "--"])
        status, said = runner.ended()
    assert (status, outputs(runner.output)) == (0, EXPECTED), said


def test_a_run_goes_on_from_a_remote_when_its_machine_is_gone(criu, short_dir):
    """The machines have nothing in common but the notebook, the remote and its key."""
    notebook = write_notebook(short_dir / "notebook.ipynb", CELLS)
    with folder_of_a_daemon() as first, folder_of_a_daemon() as second:
        here = Runner(environment(criu, first), notebook, short_dir / "out.ipynb")
        there = Runner(environment(criu, second), notebook, short_dir / "out.ipynb")
        where = ("offsite", f"file://{short_dir}/offsite", "--key-file", str(short_dir / "key"))
        command(here, "remote", "create", *where)
        here.start("--lose-at-most", "1s")
        wait_for(lambda: here.has_shown(AT_FIRST))
        here.open_gate(10)
        wait_for(lambda: here.has_shown(AT_SECOND))
        here.process.terminate()
        assert here.ended()[0] == 130
        newest = here.kernels()[0].snapshot_id
        command(here, "remote", "upload", "offsite", newest)
        end_everything_below(first)
        shutil.rmtree(first / "data")

        there.open_gate(20)
        command(there, "remote", "add", *where)
        [session] = command(there, "remote", "sessions", "offsite")["sessions"]
        assert newest in {one["snapshot_id"] for one in session["snapshots"]}
        command(there, "remote", "fetch", "offsite", newest)
        status, said = there.run("--from", newest)
        assert (status, outputs(there.output)) == (0, EXPECTED), said


def command(runner, *words):
    """Run a command on a runner's machine; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpuckpt.cli", *words, "--json"],
        env=runner.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout) if done.stdout.strip() else None


def children(pid):
    """Return the children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
