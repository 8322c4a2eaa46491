"""A trial of a row: a real kernel that is saved, suspended and resumed, and that uses its state after each step."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.errors import GpuCkptError
from jupyter_gpuckpt.host import privileges
from jupyter_gpuckpt.wire import calls
from tests.matrix.row import Row

#: Where lines are kept for the page (report.py).
VARIABLE = "GPUCKPT_STATE_LINES"


class Line(msgspec.Struct):
    """The result of a trial."""

    row: str
    #: works | refused | wrong | hangs | not run
    outcome: str
    #: What went wrong, or the words of the refusal.
    reason: str = ""


class WrongError(Exception):
    """A state that is not as it was, or a step that failed."""


class HangsError(WrongError):
    """A cell that does not end."""


class Kernel:
    """A kernel of a script, run by our provisioner."""

    def __init__(self, name: str, directory: Path) -> None:
        self._manager = KernelManager(kernel_name=name)
        self._manager.start_kernel(cwd=str(directory))
        self.client: BlockingKernelClient = self._manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=180)
        self.provisioner = self._manager.provisioner
        self.kernel_id = self.provisioner.kernel_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def run(self, code: str, patience: float) -> str:
        """Run a cell and return what it printed. Raises WrongError with its traceback, or HangsError."""
        printed: list[str] = []

        def keep(message: dict) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])
            elif message["msg_type"] == "error":
                printed.extend(message["content"]["traceback"])

        try:
            reply = self.client.execute_interactive(code, timeout=patience, output_hook=keep)
        except TimeoutError:
            raise HangsError(
                f"the cell did not end within {patience} s: {''.join(printed)}"
            ) from None
        text = re.sub(r"\x1b\[[0-9;]*m", "", "".join(printed))
        if reply["content"]["status"] != "ok":
            raise WrongError(text or str(reply["content"]))
        return text


def missing(row: Row) -> str:
    """Return why a row cannot run here; nothing if it can."""
    if row.rights and not privileges.suffice():
        return "only root can make it"
    absent = [module for module in row.needs if importlib.util.find_spec(module) is None]
    return f"{', '.join(absent)} is not installed" if absent else ""


def attempt(row: Row, directory: Path) -> Line:
    """Try a row: save, then suspend and resume twice, and use the state after each of them."""
    step = "begin"
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as outside,
            Client.connect() as client,
            Kernel(row.kernel, directory) as kernel,
        ):
            port = str(outside.getsockname()[1])
            kernel.run(row.begin.replace("OUTSIDE_PORT", port), row.patience)
            kernel.run(row.use, row.patience)
            if row.refused:
                return _refusal(row, client, kernel)
            for verbs in [("save",), ("suspend", "resume"), ("suspend", "resume")]:
                for step in verbs:
                    done = client.wait(
                        client.send(getattr(calls, step)(kernel.kernel_id)).operation_id
                    )
                    _check_warnings(row, done.warnings)
                # Output that is sent before the connection is there again is lost, as for any client without a server.
                kernel.client.wait_for_ready(timeout=row.patience)
                step = f"use after {verbs[-1]}"
                kernel.run(row.use, row.patience)
    except HangsError as error:
        return Line(row.name, "hangs", f"{step}: {error}")
    except (WrongError, GpuCkptError) as error:
        details = getattr(error, "details", "")
        return Line(row.name, "wrong", f"{step}: {error} {details}".strip())
    return Line(row.name, "works")


def _check_warnings(row: Row, said: Sequence[str]) -> None:
    """Raise WrongError if an operation warned of anything that the row does not name, such as a fact that the audit found changed."""
    unknown = [text for text in said if not (row.warned and re.search(row.warned, text))]
    if unknown:
        raise WrongError(f"it warned: {' '.join(unknown)}")


def _refusal(row: Row, client: Client, kernel: Kernel) -> Line:
    said = ""
    for verb in (calls.save, calls.suspend):
        try:
            client.wait(client.send(verb(kernel.kernel_id)).operation_id)
        except GpuCkptError as error:
            said = str(error)
            if not re.search(row.refused, said):
                return Line(row.name, "wrong", f"refused in other words: {said} {error.details}")
        else:
            return Line(row.name, "wrong", "it was not refused")
        kernel.run(row.use, row.patience)
    return Line(row.name, "refused", said)


def keep(line: Line) -> None:
    """Print a line, and append it to the file that GPUCKPT_STATE_LINES names."""
    print(f"{line.row}: {line.outcome} {line.reason}")
    if path := os.environ.get(VARIABLE):
        # One write: several processes append.
        with Path(path).open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(line) + b"\n")
