"""Tests that a demo leaves no process and no file, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import end_everything_below, processes_naming

TOOLS = Path(__file__).parents[2] / "tools"
#: The demo with a smaller array, and a kernel that can or cannot be saved. It compares when the kernel was saved and runs on.
DEMO = """
import sys
sys.path.insert(0, sys.argv[1])
import demo
demo.SETUP = demo.SETUP.replace("1 << 27", "1 << 17") + sys.argv[2]
demo.compare = lambda before, after: print("compared", flush=True)
sys.exit(demo.in_directory(demo.run))
"""
#: What CRIU refuses: a descriptor for the name of a pipe.
UNSAVEABLE = "os.mkfifo('pipe'); held = os.open('pipe', os.O_PATH)"


def start(criu, folder, more=""):
    """Start the demo; all that it starts inherits a variable that names the folder."""
    return subprocess.Popen(
        [sys.executable, "-c", DEMO, TOOLS, more],
        env=os.environ | {"JUPYTER_GPUCKPT_CRIU": str(criu), "STARTED_FOR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def clean(short_dir):
    """Check that nothing is left, and end what is."""
    before = set(Path("/tmp").glob("gpuckpt-demo-*"))
    try:
        yield
        assert processes_naming(short_dir) == []
        assert set(Path("/tmp").glob("gpuckpt-demo-*")) <= before
    finally:
        end_everything_below(short_dir)


def test_a_demo_that_fails_leaves_nothing(criu, short_dir, clean):
    """Neither does its kernel, which no server can suspend."""
    with start(criu, short_dir, UNSAVEABLE) as process:
        _, told = process.communicate()
    assert process.returncode == 1, told
    assert "The demo failed: save failed" in told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_interrupted_leaves_nothing(criu, short_dir, clean, number):
    with start(criu, short_dir) as process:
        assert "compared\n" in process.stdout
        assert len(processes_naming(short_dir)) > 3  # demo, server, daemon, init, kernel
        process.send_signal(number)
        _, told = process.communicate()
    assert process.returncode == 130, told
    assert told == "\nThe demo was interrupted.\n"
