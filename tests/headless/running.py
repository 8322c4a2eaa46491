"""Runners of notebooks as processes, and what they leave; used by the tests and by the kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import nbformat

from jupyter_gpuckpt.client.starting import Target
from jupyter_gpuckpt.client.sync_client import Client
from jupyter_gpuckpt.errors import DaemonUnavailable
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.daemon_settings import Settings
from jupyter_gpuckpt.wire.place import this_place

#: It shows a number at a time and waits at each gate; what it computes depends on all that was before.
GATES = (10, 20)
CELLS = [
    "import time\nfrom pathlib import Path\ntotal = 0",
    f"""for number in range(1, 31):
    total += number * number
    print(number, total, flush=True)
    while number in {GATES} and not Path(f"gate-{{number}}").exists():
        time.sleep(0.01)
total""",
    "print(total)\ntotal * 2",
]


def write_notebook(path: Path, cells: list[str], tags: dict[int, list[str]] | None = None) -> Path:
    """Write a notebook of these cells."""
    made = [nbformat.v4.new_code_cell(source, id=f"cell-{n}") for n, source in enumerate(cells)]
    for number, names in (tags or {}).items():
        made[number].metadata["tags"] = names
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=made, metadata=metadata), path)
    return path


def outputs(path: Path) -> list[list[str]]:
    """Return the outputs of each cell, what was printed in one piece each."""
    found = []
    for cell in json.loads(path.read_text())["cells"]:
        texts: list[str] = []
        was = ""
        for output in cell["outputs"]:
            kind = output["output_type"]
            text = "".join(output.get("text", output.get("data", {}).get("text/plain", "")))
            text = output["ename"] if kind == "error" else text
            if kind == was == "stream":
                texts[-1] += text
            else:
                texts.append(text)
            was = kind
        found.append(texts)
    return found


class Runner:
    """`jupyter gpuckpt execute` in a process, in the folder and environment of a test."""

    def __init__(self, env: dict[str, str], notebook: Path, output: Path) -> None:
        self.env, self.notebook, self.output = env, notebook, output
        self.process: subprocess.Popen[str] | None = None
        settings = Settings(data_dir=env["JUPYTER_GPUCKPT_DATA_DIR"])
        self.data = settings.data
        place = this_place(settings.data)
        socket = Path(env["JUPYTER_GPUCKPT_RUNTIME_DIR"]) / f"{place.key}.sock"
        self._target = Target(settings, place, socket, start=False)

    def words(self) -> list[str]:
        """Return the arguments of Python."""
        command = ["-m", "jupyter_gpuckpt.cli", "execute"]
        return [*command, str(self.notebook), "-o", str(self.output)]

    def start(self, *options: str, within: Sequence[str] = ()) -> None:
        """Start it. `within`: a command that runs it, for example in a container."""
        self.process = subprocess.Popen(
            [*within, sys.executable, *self.words(), *options],
            env=self.env,
            cwd=self.notebook.parent,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(self) -> tuple[int, str]:
        """Wait for its end; return the exit status and what it said."""
        assert self.process is not None
        said = self.process.communicate(timeout=300)[1]
        return self.process.returncode, said

    def open_gate(self, number: int) -> None:
        """Let the notebook go on beyond this number."""
        (self.notebook.parent / f"gate-{number}").touch()

    def run(self, *options: str) -> tuple[int, str]:
        """Start it and wait for its end."""
        self.start(*options)
        return self.ended()

    def has_shown(self, text: str) -> bool:
        """Return whether the output on disk has this text; fails when the runner has ended before."""
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"it has ended: {self.ended()}")
        with suppress(OSError, ValueError):
            return text in str(outputs(self.output))
        return False

    def client(self) -> Client:
        """Return a client of the test's daemon, which must run."""
        return Client(self._target)

    def kernels(self) -> list:
        """Return the kernels of the test's daemon."""
        with self.client() as client:
            return client.send(calls.kernels())

    def snapshots(self) -> list:
        """Return the snapshots of the test's daemon."""
        with self.client() as client:
            return client.send(calls.snapshots())

    def pids(self) -> tuple[int, list[int]]:
        """Return the daemon's process and those of the kernels' inits, of this test alone; 0 without a daemon."""
        try:
            with self.client() as client:
                daemon = client.send(calls.handshake()).pid
                return daemon, [k.init_pid for k in client.send(calls.kernels()) if k.init_pid]
        except DaemonUnavailable:
            return 0, []

    def forget_everything(self) -> None:
        """End the kernels of the test's daemon and delete its snapshots: the next test's runner counts only its own."""
        with suppress(DaemonUnavailable), self.client() as client:
            for kernel in client.send(calls.kernels()):
                client.send(calls.kill(kernel.kernel_id))
            for snapshot in client.send(calls.snapshots()):
                client.send(calls.delete_snapshot(snapshot.snapshot_id))

    def kill(self, *, runner: bool = True, daemon: bool = False, kernel: bool = False) -> None:
        """Kill what is named, and wait for the runner's end."""
        assert self.process is not None
        pid, inits = self.pids() if daemon or kernel else (0, [])
        victims = [pid] * daemon + inits * kernel + [self.process.pid] * runner
        for victim in victims:
            with suppress(ProcessLookupError):
                if victim > 0:
                    os.kill(victim, signal.SIGKILL)
        if runner:
            self.process.communicate()
