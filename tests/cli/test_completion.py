"""Completion with argcomplete: what a shell gets for a line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.wire import calls

BIN = Path(sys.executable).parent


@pytest.fixture
def completed(daemon_env):
    """Return a function that completes a line as bash does, and returns the candidates."""

    def run(line):
        reading, writing = os.pipe()
        program = line.split()[0]
        env = {
            **daemon_env,
            "PATH": f"{BIN}:{daemon_env['PATH']}",
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_SHELL": "bash",
            "_ARGCOMPLETE_IFS": "\n",
            "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
        }
        script = f'exec "$0" 8>&{writing} 9>/dev/null'
        done = subprocess.run(
            ["bash", "-c", script, BIN / program],
            env=env,
            pass_fds=[writing],
            capture_output=True,
            timeout=300,
            check=False,
        )
        os.close(writing)
        with open(reading) as found:
            text = found.read()
        assert done.stdout == b"", done.stderr
        return text.split("\n") if text else []

    return run


@pytest.mark.parametrize("program", ["jupyter-gpuckpt", "jupyter gpuckpt"])
def test_names_of_kernels_and_snapshots_are_completed(
    program, kernel, gpuckpt, completed, daemon_env, monkeypatch
):
    for name, value in daemon_env.items():
        monkeypatch.setenv(name, value)
    with Client.connect(start=False) as client:
        client.send(calls.set_jupyter(kernel.id, name="train.ipynb"))
    gpuckpt("save", "train", "--title", "before")
    assert completed(f"{program} suspend t") == ["train.ipynb"]
    assert completed(f"{program} show ") == ["latest", "before"]
    assert completed(f"{program} resume tr") == ["train.ipynb"]


def test_commands_are_completed_and_no_daemon_is_started(completed, daemon_env):
    assert completed("jupyter-gpuckpt sus") == ["suspend"]
    assert completed("jupyter-gpuckpt suspend ") == []
    assert not list(Path(daemon_env["JUPYTER_GPUCKPT_DATA_DIR"]).glob("log/*"))
