"""Real clients, killed with their whole process group in the middle of a cell: outputs and variables are complete afterwards.

`GPUCKPT_CLIENTS` names the interpreter of an environment with the clients of `clients.txt`; without it, those that are installed here
are tested. `GPUCKPT_CLIENTS_TABLE` names a file for what was seen, of which docs/editors.md has a copy.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue

import pexpect
import pytest

from tests.conftest import PATIENCE, missing, wait_for

from .test_windows import COUNT, lines

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("client_program.py")
PYTHON = os.environ.get("GPUCKPT_CLIENTS", sys.executable)
#: Of each client its module, its distribution, and how its kernel is started.
CLIENTS = {
    "jupyter_client": ("jupyter_client", "jupyter_client", "its kernel manager"),
    "qtconsole": ("qtconsole.manager", "qtconsole", "its manager, in Qt's event loop"),
    "kernel_gateway": ("kernel_gateway", "jupyter_kernel_gateway", "REST, a websocket"),
    "jupyter_kernel_client": (
        "jupyter_kernel_client",
        "jupyter_kernel_client",
        "a Jupyter server without our extension, as PyCharm's",
    ),
    "zed": ("jupyter_client", "", "a script of what Zed's source shows"),
}
SEEN = {}


@pytest.fixture(scope="module", autouse=True)
def table():
    """Write what was seen as rows of a table."""
    yield
    if (path := os.environ.get("GPUCKPT_CLIENTS_TABLE")) and SEEN:
        Path(path).write_text("".join(f"| {' | '.join(row)} |\n" for row in SEEN.values()))


def asked(code):
    """Ask the clients' interpreter; return what it prints, empty if it fails."""
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if not done.returncode else ""


def require(module):
    if not asked(f"import {module}; print(1)"):
        missing("clients", f"{module} is not installed for {PYTHON}")


def version(distribution):
    return asked(f"from importlib.metadata import version; print(version({distribution!r}))")


class Client:
    """A running client, in a process group of its own."""

    def __init__(self, desk, name):
        self.process = subprocess.Popen(
            [PYTHON, PROGRAM, name, desk.spec.name],
            cwd=desk.folder,
            env={**desk.env, "PYTHONPATH": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.events = Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.wait("started")

    def _read(self):
        for line in self.process.stdout:
            self.events.put(json.loads(line))
        self.events.put({"event": "ended"})

    def wait(self, name):
        outputs = []
        while True:
            try:
                event = self.events.get(timeout=PATIENCE)
            except Empty:
                raise AssertionError(f"{name} did not come after {outputs}") from None
            assert event["event"] != "ended", outputs
            if event["event"] == "output":
                outputs.append((event["name"], event["text"]))
            if event["event"] == name:
                return outputs

    def tell(self, code):
        self.process.stdin.write(json.dumps({"code": code}) + "\n")
        self.process.stdin.flush()

    def run(self, code):
        """Run a cell; return what it printed on standard output, and on standard error."""
        self.tell(code)
        outputs = self.wait("done")
        return tuple("".join(t for n, t in outputs if n == name) for name in ("stdout", "stderr"))

    def kill(self):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.reader.join()
        self.process.stdout.close()


def kept_here(desk):
    """Wait until the relay keeps a kernel of this folder; return its record."""

    def found():
        return [
            one for one in desk.records() if one["folder"] == str(desk.folder) and one["left_at"]
        ]

    return wait_for(found)[0]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_killed_client_loses_neither_variables_nor_output(desk, name):
    module, distribution, how = CLIENTS[name]
    require(module)
    first = Client(desk, name)
    try:
        first.run("x = 41")
        # It ends before the relay can know that nobody comes back.
        first.tell(COUNT.format(count=30, pause=0.03))
        first.wait("output")
    finally:
        first.kill()
    kept = kept_here(desk)
    second = Client(desk, name)
    try:
        _, told = second.run("y = 1")
        assert "kept from before" in told
        assert "This is now the kernel" in second.run(f"%gpuckpt resume {kept['session_id']}")[0]
        printed, told = second.run("print(x + 1)")
        assert printed == "42\n"
        assert "`%gpuckpt output`" in told
        assert second.run("%gpuckpt output")[0].endswith(lines(30))
    finally:
        second.kill()
    shown = name if not distribution else f"{distribution} {version(distribution)}"
    SEEN[name] = (shown, how, "`%gpuckpt resume`", "complete", "complete")


class Terminal:
    """A client that runs in a terminal, in a process group of its own. A cell is pasted where `pastes`, else typed."""

    def __init__(self, desk, command, *, pastes):
        env = {**desk.env, "PYTHONPATH": "", "TERM": "xterm" if pastes else "dumb"}
        (Path(desk.folder) / "home").mkdir(exist_ok=True)
        env["HOME"] = f"{desk.folder}/home"
        self.pastes = pastes
        self.spawned = pexpect.spawn(
            command[0],
            [*command[1:], desk.spec.name],
            cwd=str(desk.folder),
            env=env,
            timeout=PATIENCE,
            echo=False,
            dimensions=(50, 160),
        )

    def run(self, code, *shown):
        """Run a cell, and wait until these texts were shown, in order."""
        self.spawned.send(f"\x1b[200~{code}\x1b[201~\r" if self.pastes else f"{code}\n")
        for text in shown:
            self.see(text)

    def see(self, text):
        """Wait for a text; a program that asks where the cursor is gets an answer meanwhile."""
        while self.spawned.expect_exact(["\x1b[6n", text]) == 0:
            self.spawned.send("\x1b[1;1R")

    def kill(self):
        with suppress(ProcessLookupError):
            os.killpg(self.spawned.pid, signal.SIGKILL)
        self.spawned.close(force=True)


TERMINALS = {
    "jupyter_console": (
        ["-m", "jupyter_console", "--simple-prompt", "--kernel"],
        "In [1]: ",
        False,
    ),
    "euporie": (["-m", "euporie.console", "--kernel-name"], "keeps its state", True),
}


@pytest.mark.parametrize("name", TERMINALS)
def test_a_killed_terminal_loses_neither_variables_nor_output(desk, name):
    require(name)
    arguments, ready, pastes = TERMINALS[name]
    command = [PYTHON, *arguments]
    first = Terminal(desk, command, pastes=pastes)
    try:
        first.see(ready)
        first.run("x = 41; print('x', 'is there')", "x is there")
        first.run(f"exec({COUNT.format(count=30, pause=0.03)!r})", "line 3")
    finally:
        first.kill()
    kept = kept_here(desk)
    second = Terminal(desk, command, pastes=pastes)
    try:
        second.see(ready)
        second.run("y = 1", "kept from before")
        second.run(f"%gpuckpt resume {kept['session_id']}", "This is now the kernel")
        second.run("print('x is', x + 1)", "x is 42")
        second.run("%gpuckpt output", *(f"line {number}" for number in range(30)))
    finally:
        second.kill()
    shown = f"{name} {version(name)}"
    SEEN[name] = (shown, "a terminal", "`%gpuckpt resume`", "complete", "complete")
