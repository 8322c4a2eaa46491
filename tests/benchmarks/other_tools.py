"""Other programs that keep a notebook's session, each as its own documentation uses it, in an environment of its own.

dill writes what the main module holds into one file. Kishu stores variables after every cell and checks out a commit; it needs
no page in its test mode. elastic-kernel is a kernel that stores or computes again. They are installed when they are first asked
for; where that fails, the error is what the benchmark says.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.protocol import Operation, Result

from .environment import kernel, wait_until_ready

_CELL_SECONDS = 120
_REST_SECONDS = 8
#: Beside the interpreter that runs this; gone with it.
_ENVIRONMENTS = Path(sys.prefix) / "other-tools"
#: What every notebook may import.
_EVERYWHERE = ["ipykernel", "numpy", "pandas"]


class Failed(Exception):  # noqa: N818 - what the benchmark reports
    """A tool could not do it; the message is its own."""


def python_of(package: str) -> Path:
    """Return the interpreter of an environment that has `package`, made now if there is none. Raises Failed."""
    place = _ENVIRONMENTS / package
    python, done = place / "bin" / "python", place / "complete"
    if not done.exists():
        for words in (
            [sys.executable, "-m", "venv", "--clear", str(place)],
            [
                str(python),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--retries",
                "1",
                package,
                *_EVERYWHERE,
            ],
        ):
            made = subprocess.run(words, capture_output=True, text=True, check=False)
            if made.returncode:
                raise Failed(f"not installed: {made.stderr.strip().splitlines()[-1]}")
        done.touch()
    # What only some notebooks need (PyTorch) is taken from here, after what the environment has of its own.
    ours = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (own,) = place.glob("lib/python*/site-packages")
    (own / "other-modules.pth").write_text("".join(f"{path}\n" for path in ours))
    return python


def version_of(package: str) -> str:
    """Its version in its environment; empty where it is not installed."""
    code = f"from importlib import metadata; print(metadata.version({package!r}))"
    python = _ENVIRONMENTS / package / "bin" / "python"
    with suppress(OSError):
        return subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=False
        ).stdout.strip()
    return ""


class Session(ABC):
    """One notebook's session under one tool. Every method that does something for the user raises Failed."""

    #: It saves after every cell by itself: what cells take longer is the time of its save.
    saves_after_cells = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.client = BlockingKernelClient()

    @abstractmethod
    def start(self) -> None:
        """Start a new kernel."""

    @abstractmethod
    def save(self) -> int:
        """Keep what it holds, on the disk for sure; the bytes that this takes there. The kernel may be gone afterwards."""

    @abstractmethod
    def leave(self) -> None:
        """Its process is gone; what was saved stays."""

    @abstractmethod
    def come_back(self) -> None:
        """Start a kernel that has the saved state."""

    @abstractmethod
    def interrupt(self) -> None:
        """As the stop button does."""

    @abstractmethod
    def end(self) -> None:
        """Nothing of it runs any more."""

    def run(self, code: str) -> None:
        """Run a cell; raise its error."""
        self._execute(code, _CELL_SECONDS)

    def ask(self, code: str) -> str:
        """Return the value of the last expression of `code`, as text, or what went wrong."""
        try:
            return self.answer(code)
        except Failed as error:
            return f"{error}"

    def answer(self, code: str) -> str:
        """Return the value of the last expression of `code`, as text."""
        return self._execute(code, _REST_SECONDS)

    def _execute(self, code: str, seconds: float) -> str:
        said: list[str] = []

        def hook(message: dict[str, Any]) -> None:
            if message["msg_type"] == "execute_result":
                said.append(message["content"]["data"]["text/plain"])

        try:
            reply = self.client.execute_interactive(code, timeout=seconds, output_hook=hook)
        except TimeoutError:
            self.interrupt()
            if said:
                # elastic-kernel prints the right value, then fails before it replies: what it holds counts.
                return "".join(said)
            raise Failed(f"no answer within {seconds} s") from None
        content = reply["content"]
        if content["status"] != "ok":
            raise Failed(f"{content.get('ename')}: {content.get('evalue')}"[:120])
        return "".join(said)


class Plain(Session):
    """A stock kernel, which keeps nothing: what is right is what it says."""

    package = ""
    #: Of the kernel: the words after the interpreter.
    words: tuple[str, ...] = ("-m", "ipykernel_launcher")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.python = python_of(self.package) if self.package else Path(sys.executable)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = (folder / "kernel.log").open("ab")
        (folder / "notebook.ipynb").write_text(
            json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
        )

    def start(self) -> None:
        """Start a new process."""
        client = BlockingKernelClient(
            connection_file=str(self.folder / f"kernel-{uuid.uuid4()}.json")
        )
        client.write_connection_file()
        # A kernel's children may hold its pipes; its group is ended as one.
        self._process = subprocess.Popen(
            [str(self.python), *self.words, "-f", client.connection_file],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self.client = client
        client.start_channels()
        try:
            wait_until_ready(client, 60)
        except RuntimeError as error:
            raise Failed(f"the kernel does not start: {error}") from error

    def save(self) -> int:
        """Nothing."""
        raise Failed("keeps nothing")

    def leave(self) -> None:
        """As `end`."""
        self.end()

    def come_back(self) -> None:
        """Without anything."""
        self.start()

    def interrupt(self) -> None:
        """SIGINT."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            with suppress(RuntimeError):
                self.client.wait_for_ready(timeout=10)

    def end(self) -> None:
        """SIGKILL to its group."""
        if self._process is None:
            return
        self.client.stop_channels()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def _environment(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("JUPYTER_")}
        return {
            **kept,
            "IPYTHONDIR": str(self.folder / "ipython"),
            "KISHU_PATH_ROOT": str(self.folder),
            "ENV_KISHU_TEST_MODE": "1",
            "JPY_SESSION_NAME": str(self.folder / "notebook.ipynb"),
        }

    def _kept_bytes(self, path: Path) -> int:
        """Sync a file to the disk and return its length."""
        if not path.exists():
            raise Failed("nothing was written")
        with path.open("rb") as file:
            os.fsync(file.fileno())
        return path.stat().st_size


class Dill(Plain):
    """`dill.dump_module` and `load_module` (dump_session is their old name), by name in cells."""

    package = "dill"

    def save(self) -> int:
        """Dump the main module."""
        path = self.folder / "session.dill"
        self.run(f"import dill\ndill.dump_module({str(path)!r})")
        return self._kept_bytes(path)

    def come_back(self) -> None:
        """Start a new kernel that loads the saved state."""
        self.start()
        self.run(f"import dill\ndill.load_module({str(self.folder / 'session.dill')!r})")


class Kishu(Plain):
    """Attached by its first cell; its commits lie in a database beside the notebook."""

    package = "kishu"
    saves_after_cells = True
    _commit = ""

    def start(self) -> None:
        """Start a new kernel with Kishu attached."""
        super().start()
        path = str(self.folder / "notebook.ipynb")
        self.run(f"from kishu import init_kishu\ninit_kishu({path!r})")

    def save(self) -> int:
        """Return the size of Kishu's commit of the last cell; the checkout of an explicit commit misses variables of that cell."""
        self._commit = self._value("_kishu._kishu_branch.get_head().commit_id").strip("'")
        return self._kept_bytes(self.folder / "notebook.kishudb")

    def come_back(self) -> None:
        """Start a new kernel that checks the commit out, in a cell: after a silent request it sometimes does not answer again."""
        self.start()
        self.run(f"_kishu.checkout({self._commit!r})")

    def _value(self, expression: str) -> str:
        """Return the value of an expression, evaluated silently as by Kishu's own commands, so that it is no cell."""
        reply = self.client.execute_interactive(
            "",
            silent=True,
            user_expressions={"value": expression},
            timeout=_CELL_SECONDS,
            output_hook=lambda message: None,
        )
        value = reply["content"]["user_expressions"]["value"]
        if value["status"] != "ok":
            raise Failed(f"{value.get('ename')}: {value.get('evalue')}"[:120])
        return str(value["data"]["text/plain"])


class Elastic(Plain):
    """A kernel of its own; it is asked over the control channel, and restores by itself when it starts."""

    package = "elastic-kernel"
    words = ("-m", "elastic_kernel.kernel")

    def save(self) -> int:
        """Its own message."""
        message = self.client.session.msg("elastic_checkpoint_request", {})
        self.client.control_channel.send(message)
        deadline = time.monotonic() + _CELL_SECONDS
        while time.monotonic() < deadline:
            reply = self.client.get_control_msg(timeout=_CELL_SECONDS)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                break
        if not reply["content"].get("ok"):
            raise Failed(f"{reply['content'].get('error') or reply['content'].get('reason')}"[:120])
        return self._kept_bytes(Path(reply["content"]["path"]))


class Ours(Session):
    """jupyter-gpuckpt, as any program uses it: provisioner, daemon, suspend and resume."""

    package = "jupyter_gpuckpt"

    def __init__(self, folder: Path, daemon: Client) -> None:
        super().__init__(folder)
        self._daemon = daemon
        self._kernel_id = ""

    def start(self) -> None:
        """Start a kernel under the engine."""
        self._open = kernel("", cwd=str(self.folder))
        self._kernel_id, self.client = self._open.__enter__()

    def save(self) -> int:
        """Suspend."""
        return self._done(calls.suspend(self._kernel_id)).sizes.stored_bytes

    def leave(self) -> None:
        """Do nothing: the suspend has ended the kernel."""

    def come_back(self) -> None:
        """Resume, up to the first reply."""
        self._done(calls.resume(self._kernel_id))
        wait_until_ready(self.client, 60)

    def interrupt(self) -> None:
        """SIGINT."""
        self._daemon.send(calls.signal(self._kernel_id, signal.SIGINT))
        with suppress(RuntimeError):
            self.client.wait_for_ready(timeout=10)

    def end(self) -> None:
        """Shut it down."""
        if self._kernel_id:
            self._open.__exit__(None, None, None)
            self._kernel_id = ""

    def _done(self, call: calls.Call[Operation]) -> Result:
        return self._daemon.wait(self._daemon.send(call).operation_id)
