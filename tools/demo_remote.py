"""A demo of remotes: a kernel is saved on machine A, uploaded, fetched on machine B and resumed there.

python tools/demo_remote.py [URL]      a bucket, with credentials where its provider's tools find them; else a folder

A and B are two data directories with a daemon each, on this machine. The demo does what a user does: it runs a notebook on A, and the
commands `jupyter gpuckpt remote` and `resume` on B. Any difference between the states on A and B ends it with an error.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from demo import (
    GPU_SETUP,
    JSON,
    SETUP,
    STATE,
    Server,
    Table,
    check,
    compare,
    execute,
    in_directory,
    megabytes,
    processes_of,
    serving,
    sizes,
)
from jupyter_client import BlockingKernelClient

_Result = TypeVar("_Result")
#: The timeout for the end of a process.
MAX_END_SECONDS = 60.0


class User:
    """A user who types commands on a machine.

    `within`: a command that runs the command after it on that machine.
    """

    def __init__(self, directory: Path) -> None:
        self.within: list[str] = []
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.runtime = directory / "runtime"
        self._env = {
            **os.environ,
            "JUPYTER_GPUCKPT_DATA_DIR": str(directory / "gpuckpt"),
            "JUPYTER_GPUCKPT_RUNTIME_DIR": str(directory / "run"),
            "JUPYTER_RUNTIME_DIR": str(self.runtime),
        }

    def types(self, *arguments: str, said: str = "") -> Any:  # noqa: ANN401 - JSON
        """Run a command of `jupyter gpuckpt` and return its JSON document."""
        done = self._run(*arguments, said=said)
        check(
            done.returncode == 0,
            f"jupyter gpuckpt {' '.join(arguments)}: {done.stdout}{done.stderr}",
        )
        return json.loads(done.stdout)

    def is_refused(self, *arguments: str) -> Any:  # noqa: ANN401 - JSON
        """Run a command that must be refused and return its error."""
        done = self._run(*arguments)
        check(done.returncode != 0, f"jupyter gpuckpt {' '.join(arguments)} was not refused")
        return json.loads(done.stdout)["error"]

    def _run(self, *arguments: str, said: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.within, sys.executable, "-m", "jupyter_gpuckpt.cli", *arguments, "--json"],
            cwd=self.directory,
            env=self._env,
            input=said,
            capture_output=True,
            text=True,
            check=False,
        )


def timed(work: Callable[[], _Result]) -> tuple[_Result, float]:
    """Return the result of some work and its duration in seconds."""
    began = time.monotonic()
    return work(), time.monotonic() - began


async def run(directory: Path, url: str) -> None:
    """Save the kernel on A and resume it on B."""
    table = Table()
    a, b = User(directory / "a"), User(directory / "b")
    added = a.types("remote", "create", "demo", url)
    table.add("A: remote created", None, url)
    kernel_id, snapshot_id, before = await on_a(a, table)
    left = processes_of(a.directory / "notebooks")
    check(not left, f"processes are left: {left}")

    b.types("remote", "add", "demo", said=added["line"] + "\n")
    table.add("B: remote added", None, "by the line that A printed")
    listing, spent = timed(lambda: b.types("remote", "sessions", "demo"))
    [session] = listing["sessions"]
    check(session["session_id"] == kernel_id, f"another session: {session}")
    table.add("B: listed", spent, f"{session['path']} of {session['host_name']}")
    estimate = b.types("remote", "fetch", "demo", snapshot_id, "--check")
    check(not estimate["obstacles"], str(estimate["obstacles"]))
    table.add("B: checked", None, f"{megabytes(estimate['move_bytes'])} to be moved, no obstacle")
    done = b.types("remote", "fetch", "demo", snapshot_id)["operation"]["result"]
    table.add("B: fetched", done["seconds"], megabytes(done["sizes"]["new_bytes"]))
    on_b(b, table, kernel_id, snapshot_id, before)


async def on_a(a: User, table: Table) -> tuple[str, str, JSON]:
    """Create state in a notebook, suspend its kernel, and wait for the upload; return kernel, snapshot and state."""
    (a.directory / "notebooks").mkdir()
    empty = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (a.directory / "notebooks/demo.ipynb").write_text(json.dumps(empty))
    async with serving(a.directory, table, "A:") as server:
        kernel_id = session_of(server)["kernel"]["id"]
        connection = await server.connect(kernel_id)
        await execute(connection, SETUP)
        gpu = (await execute(connection, GPU_SETUP)).strip()
        before = json.loads(await execute(connection, STATE))
        table.add("A: cells run", None, f"variables, sqlite, 1 GB array, thread, child, {gpu}")
        suspended = await asyncio.to_thread(server.operation, "suspend", kernel_id)
        table.add("A: suspended", suspended["seconds"], sizes(suspended))
        connection.close()
        snapshot_id = suspended["snapshot_id"]
        upload = ("remote", "upload", "demo", snapshot_id)
        _, spent = await asyncio.to_thread(timed, lambda: a.types(*upload))
        table.add("A: uploaded", spent)
    return kernel_id, snapshot_id, before


def session_of(server: Server) -> JSON:
    """Open the notebook and return its session."""
    body = {"path": "demo.ipynb", "name": "demo.ipynb", "type": "notebook"}
    found: JSON = server.request("POST", "/api/sessions", {**body, "kernel": {"name": "python3"}})
    return found


def on_b(b: User, table: Table, kernel_id: str, snapshot_id: str, before: JSON) -> None:
    """Fetch and resume the kernel, and compare its state with `before`."""
    done = b.types("resume", snapshot_id)["operation"]["result"]
    table.add("B: resumed", done["seconds"])
    client = BlockingKernelClient(connection_file=str(b.runtime / f"kernel-{kernel_id}.json"))
    client.load_connection_file()
    client.start_channels()
    try:
        client.wait_for_ready(60)
        said: list[str] = []

        def hear(message: JSON) -> None:
            said.append(message["content"].get("text", ""))

        client.execute_interactive(STATE, output_hook=hear, timeout=120)
        after = json.loads("".join(said))
    finally:
        client.shutdown()
        client.stop_channels()
    compare(before, after)
    table.add("B: everything is as it was", None, "variables, transaction, array, child, clock")
    deadline = time.monotonic() + MAX_END_SECONDS
    while b.types("ps")["kernels"]:
        check(time.monotonic() < deadline, "the kernel does not end")


async def run_with_remote(directory: Path) -> None:
    """Run the demo with the bucket that was named, or with a folder of the directory."""
    await run(directory, sys.argv[1] if len(sys.argv) > 1 else f"file://{directory}/share")


if __name__ == "__main__":
    sys.exit(in_directory(run_with_remote))
