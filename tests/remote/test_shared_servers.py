"""Servers that all tests of a run share are started once, and end with the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from jupyter_gpuckpt.host import processes
from tests.conftest import wait_for
from tests.remote import run_beside, shared_servers


def test_there_is_one_for_all_who_ask(seaweedfs, pytestconfig):
    assert shared_servers.seaweedfs(pytestconfig) == seaweedfs


@pytest.mark.parametrize("killed", ["the run", "its keeper"])
def test_it_ends_with_the_run_and_with_its_keeper(tmp_path, killed):
    said = tmp_path / "pids"
    run = subprocess.Popen(["sleep", "1000"])
    try:
        words = [sys.executable, run_beside.__file__, str(run.pid), "/bin/sh", "-c"]
        subprocess.run([*words, f"echo $$ $PPID >{said}; exec sleep 1000"], check=True)
        server, keeper = map(int, wait_for(lambda: said.exists() and said.read_text()).split())
        assert processes.state(server) not in (None, "Z")
        os.kill({"the run": run.pid, "its keeper": keeper}[killed], signal.SIGKILL)
        wait_for(lambda: processes.state(server) in (None, "Z"))
    finally:
        run.kill()
        run.wait()
    wait_for(lambda: processes.state(keeper) in (None, "Z"))
