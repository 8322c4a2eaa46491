"""A demo of a machine that is taken back in the middle of a training cell, which ends on another machine without a difference.

python tools/demo_reclaim.py [--notice SECONDS] [URL]      a bucket, with credentials where its provider's tools find them; else a folder

The first part has the notice that Amazon gives spot instances, from an imitation of its metadata service, and as long before the end
as Amazon's unless --notice is given. If there is time, the kernel is saved and uploaded at once and runs on, and is suspended shortly
before the end. The second part has no notice, and the session continues from the last periodic upload. A and B
are two data directories with a server and a daemon each; if root runs the demo, each also has a host name, a boot id and a disk of its
own. All processes of A are killed, and its disk is removed. Any line that differs from an undisturbed run, or is missing, ends the demo
with an error.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from demo import JSON, Server, Table, check, end_processes, in_directory, megabytes, sizes
from demo_remote import User, session_of, timed
from tornado.websocket import WebSocketClientConnection

#: The time between Amazon's notice and the end of the machine.
NOTICE_SECONDS = 120.0
AUTOSAVE_SECONDS = 5.0
#: From this time on kernels are saved first and run on.
TIME_TO_SAVE_FIRST = 60.0
#: The timeout of a step.
MAX_STEP_SECONDS = 180.0
STEPS, PAUSE = 300, 0.1
CELL_ID = "training"
TRAINING = """
import time
import numpy as np

random = np.random.default_rng(7)
inputs = random.standard_normal((200, 20))
targets = inputs @ random.standard_normal(20) + random.standard_normal(200)
weights = np.zeros(20)
for step in range({steps}):
    error = inputs @ weights - targets
    weights -= 0.01 * (inputs.T @ error) / len(targets)
    print("step", step, "loss", float(error @ error), flush=True)
    time.sleep({pause})
print("weights", weights.tolist())
"""
#: How much longer than the notice the cell runs.
LONGER = 1.25
#: A program that runs a command on a machine of its own: NAME BOOT FOLDER OTHER COMMAND... The machine has the host name NAME and the
#: boot id in the file BOOT, and its disk FOLDER is mounted over the other machine's disk OTHER.
MACHINE = """
hostname "$1" && mount --bind "$2" /proc/sys/kernel/random/boot_id && mount --bind "$3" "$4" && shift 4 && exec "$@"
"""


def notebook(code: str) -> JSON:
    """Return a notebook with one cell."""
    cell = {
        "cell_type": "code",
        "execution_count": None,
        "id": CELL_ID,
        "metadata": {},
        "outputs": [],
        "source": code,
    }
    return {
        "cells": [cell],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


class Provider:
    """An imitation of Amazon's metadata service, after its documentation."""

    def __init__(self) -> None:
        self.notice: bytes | None = None
        token = uuid.uuid4().hex
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self._answer(token.encode() if self.path == "/latest/api/token" else None)

            def do_GET(self) -> None:
                is_asked = self.path == "/latest/meta-data/spot/instance-action"
                is_known = self.headers.get("X-aws-ec2-metadata-token") == token
                self._answer(provider.notice if is_asked and is_known else None)

            def _answer(self, body: bytes | None) -> None:
                self.send_response(200 if body else 404)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def announce(self, seconds: float) -> float:
        """Announce the end of the machine in `seconds`; return its time on the clock of `time.monotonic`."""
        at = time.gmtime(time.time() + seconds)
        text = {"action": "terminate", "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", at)}
        self.notice = json.dumps(text).encode()
        return time.monotonic() + seconds

    def close(self) -> None:
        """Stop the service."""
        self._server.shutdown()
        self._server.server_close()


class Machine:
    """A machine with a notebook, and its user. `code`: of the notebook's cell."""

    def __init__(self, folder: Path, other: Path, code: str) -> None:
        self.folder, self.name, self._other, self.code = folder, folder.name, other, code
        self._make_disk()
        self.user = User(folder)
        self.server: Server | None = None

    def _make_disk(self) -> None:
        (self.folder / "notebooks").mkdir(parents=True)
        (self.folder / "notebooks/demo.ipynb").write_text(json.dumps(notebook(self.code)))

    def start(self, provider: Provider, *options: str) -> Server:
        """Start a server on the machine and return it."""
        variables = {
            "JUPYTER_GPUCKPT_RECLAIM_PROVIDER": "aws",
            "JUPYTER_GPUCKPT_RECLAIM_ENDPOINT": provider.url,
        }
        within = []
        if os.geteuid() == 0:
            boot = self.folder.with_name(f"{self.name}-boot")
            boot.write_text(f"{uuid.uuid4()}\n")
            names = (self.name, str(boot), str(self.folder), str(self._other))
            within = ["unshare", "--uts", "--mount", "sh", "-c", MACHINE, "sh", *names]
        self.server = Server(
            self.folder,
            module="jupyter_server",
            options=options,
            variables=variables,
            within=within,
        )
        self.server.wait()
        if within:
            self.user.within = ["nsenter", f"--target={self.server.pid}", "--mount", "--uts"]
        return self.server

    def lose(self) -> None:
        """Kill all processes of the machine at once, and remove its disk."""
        end_processes(self.folder)
        if self.server is not None:
            self.server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._make_disk()  # a new disk, with the files that every machine has


class Said(NamedTuple):
    """The output of a cell that a page received: its text, the cell ids in its messages, and whether the cell has ended."""

    text: str
    cells: set[str]
    ended: bool


async def hear(connection: WebSocketClientConnection, enough: Callable[[str], bool]) -> Said:
    """Receive the running cell's output until `enough` returns True for it, or the cell ends."""
    text, cells, ended = "", set[str](), False
    while not (ended or enough(text)):
        told = await asyncio.wait_for(connection.read_message(), MAX_STEP_SECONDS)
        check(told is not None, "the websocket was closed")
        message = json.loads(told or "{}")
        if message["parent_header"].get("msg_type") != "execute_request":
            continue
        kind, content = message["header"]["msg_type"], message["content"]
        check(kind != "error", "\n".join(content.get("traceback", [])))
        text += content["text"] if kind == "stream" else ""
        cells.add(message["metadata"].get("cellId", ""))
        ended = kind == "status" and content["execution_state"] == "idle"
    return Said(text, cells, ended)


async def begin_training(a: Machine, server: Server) -> tuple[str, WebSocketClientConnection]:
    """Run the notebook's cell on A until it has printed some lines; return the kernel's id and the page's websocket."""
    kernel_id = session_of(server)["kernel"]["id"]
    connection = await server.connect(kernel_id)
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": "execute_request",
        "username": "",
        "session": "demo",
        "version": "5.3",
    }
    message = {
        "header": header,
        "parent_header": {},
        "metadata": {"cellId": CELL_ID},
        "content": {"code": a.code, "silent": False, "store_history": True},
        "channel": "shell",
        "buffers": [],
    }
    await connection.write_message(json.dumps(message))
    said = await hear(connection, lambda text: text.count("\n") > STEPS // 20)
    check(not said.ended, "the cell ended at once")
    return kernel_id, connection


async def until(condition: Callable[[], JSON | None], event: str) -> JSON:
    """Call `condition` again and again until it returns a value; return the value."""
    deadline = time.monotonic() + MAX_STEP_SECONDS
    while not (found := await asyncio.to_thread(condition)):
        check(time.monotonic() < deadline, f"never came: {event}")
        await asyncio.sleep(0.1)
    return found


def uploaded(server: Server, snapshot_id: str = "") -> JSON | None:
    """Return the newest snapshot on A that the remote has, or this one if the remote has it."""
    found: list[JSON] = server.request("GET", "/api/gpuckpt/snapshots")["snapshots"]
    there = [
        one
        for one in found
        if snapshot_id in {"", one["snapshot_id"]}
        and any(up["state"] == "uploaded" for up in one["uploads"])
    ]
    return there[0] if there else None


def leased(machine: Machine) -> JSON | None:
    """Return the session in the remote if a machine has its lease."""
    [session] = machine.user.types("remote", "sessions", "demo")["sessions"]
    return session if session["leased_to"] else None


async def with_notice(a: Machine, provider: Provider, table: Table, *, seconds: float) -> None:
    """Train on A until it is reclaimed, `seconds` after a notice. Its kernels are suspended and uploaded in that time."""
    server = await asyncio.to_thread(a.start, provider)
    kernel_id, _ = await begin_training(a, server)
    table.add("A: the cell runs")
    began, deadline = time.monotonic(), provider.announce(seconds)
    table.add("A: notice", None, f"in {seconds:.0f} s it goes, and its disk with it")

    def suspended() -> JSON | None:
        kernel: JSON = server.request("GET", f"/api/gpuckpt/kernels/{kernel_id}")
        return kernel if kernel["state"] == "suspended" else None

    if seconds >= TIME_TO_SAVE_FIRST:
        await until(lambda: uploaded(server), "the upload of the first save")
        table.add("A: saved and uploaded", time.monotonic() - began, "runs on")
    kernel = await until(suspended, "the suspend of A's kernel")
    table.add("A: suspended", time.monotonic() - began, "in the middle of the cell")
    await until(lambda: uploaded(server, kernel["snapshot_id"]), "the upload of it")
    spent = time.monotonic() - began
    check(time.monotonic() < deadline, f"the upload took too long: {spent:.1f} s")
    table.add("A: uploaded", spent)
    await asyncio.sleep(max(0.0, deadline - time.monotonic()))


async def without_notice(a: Machine, provider: Provider, table: Table) -> None:
    """Train on A until it is killed without a notice; the remote then has the last periodic save."""
    server = await asyncio.to_thread(
        a.start, provider, f"--GpuCkptServer.autosave_interval={AUTOSAVE_SECONDS}"
    )
    _, connection = await begin_training(a, server)
    table.add("A: the cell runs", None, f"saved every {AUTOSAVE_SECONDS:.0f} s")
    snapshot = await until(lambda: uploaded(server), "an upload of a periodic save")
    table.add("A: saved and uploaded", None, f"{megabytes(snapshot['stored_bytes'])}, runs on")
    await until(lambda: leased(a), "the lease of the session")
    # Later lines are lost, and are computed again on B.
    said = await hear(connection, lambda text: text.count("\n") > STEPS // 20)
    check(not said.ended, "the cell ended before the machine did")


async def on_b(b: Machine, provider: Provider, table: Table, *, takes_over: bool) -> Said:
    """Fetch the newest snapshot of the session on B, resume it in the notebook there, and receive the cell's output to its end."""
    server, spent = await asyncio.to_thread(timed, lambda: b.start(provider))
    table.add("B: server started", spent)
    [session] = (await asyncio.to_thread(b.user.types, "remote", "sessions", "demo"))["sessions"]
    newest = session["snapshots"][0]
    age = f"{time.time() - newest['created']:.0f} s old"
    table.add("B: listed", None, f"{session['path']} of {session['host_name']}, {age}")
    words = ["remote", "fetch", "demo", newest["snapshot_id"]]
    if takes_over:
        refusal = await asyncio.to_thread(b.user.is_refused, *words)
        check("runs on machine" in refusal["message"], f"another refusal: {refusal}")
        table.add("B: refused", None, refusal["message"])
        words.append("--take-over")
    fetched = (await asyncio.to_thread(b.user.types, *words))["operation"]["result"]
    how = "taken over, " if takes_over else ""
    table.add("B: fetched", fetched["seconds"], how + megabytes(fetched["sizes"]["new_bytes"]))
    began = time.monotonic()
    path = f"/api/gpuckpt/snapshots/{newest['snapshot_id']}/branch"
    resumed = server.request("POST", path, {"path": "demo.ipynb"})
    connection = await server.connect(resumed["kernel_id"])
    done = await until(lambda: ended(server, resumed["operation_id"]), "the resume")
    check(done["state"] == "succeeded", f"the resume failed: {done['error']}")
    table.add("B: resumed", done["result"]["seconds"], sizes(done["result"]))
    said = await hear(connection, lambda _: False)
    table.add("B: the cell has ended", time.monotonic() - began)
    return said


def ended(server: Server, operation_id: str) -> JSON | None:
    """Return an operation if it is over."""
    found: JSON = server.request("GET", f"/api/gpuckpt/operations/{operation_id}?wait=1")
    return None if found["state"] == "running" else found


def compare(expected: str, said: Said) -> None:
    """Raise DemoError unless B's page received exactly the lines of an undisturbed run, in the notebook's cell."""
    here, there = said.text.splitlines(), expected.splitlines()
    for number, (line, wanted) in enumerate(zip(here, there, strict=False)):
        check(line == wanted, f"line {number} is {line!r} and not {wanted!r}")
    check(len(here) == len(there), f"{len(here)} lines instead of {len(there)}")
    check(said.cells == {CELL_ID}, f"output belongs to other cells: {said.cells}")


@contextmanager
def two_machines(folder: Path, url: str, code: str) -> Iterator[tuple[Machine, Machine]]:
    """Yield machines A and B with a common remote, and remove them after the block."""
    a, b = folder / "a", folder / "b"
    machines = Machine(a, b, code), Machine(b, a, code)
    try:
        added = machines[0].user.types("remote", "create", "demo", url)
        machines[1].user.types("remote", "add", "demo", said=added["line"] + "\n")
        yield machines
    finally:
        for machine in machines:
            machine.lose()


async def run(directory: Path, url: str, notice_seconds: float) -> None:
    """Lose a machine with and without a notice, and compare both results with an undisturbed run."""
    table = Table()
    words = [sys.executable, "-c", TRAINING.format(steps=STEPS, pause=0)]
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, check=True)
    expected = done.stdout.decode()
    table.add("undisturbed run", None, f"{len(expected.splitlines())} lines, for comparison")
    provider = Provider()
    try:
        longer = max(PAUSE, LONGER * notice_seconds / STEPS)
        for name, loses, takes_over, pause in (
            ("with a notice", partial(with_notice, seconds=notice_seconds), False, longer),
            ("without a notice", without_notice, True, PAUSE),
        ):
            print(f"\n{name}:")
            provider.notice = None
            folder = name.replace(" ", "-")
            code = TRAINING.format(steps=STEPS, pause=pause)
            with two_machines(directory / folder, f"{url}/{folder}", code) as (a, b):
                await loses(a, provider, table)
                await asyncio.to_thread(a.lose)
                table.add("A: killed", None, "server, daemon and kernel; its disk is gone")
                provider.notice = None
                compare(expected, await on_b(b, provider, table, takes_over=takes_over))
                table.add("B: all lines are as undisturbed")
    finally:
        provider.close()


async def run_with_remote(directory: Path) -> None:
    """Run the demo with the bucket that was named, or with a folder of the directory."""
    parser = ArgumentParser()
    parser.add_argument("--notice", metavar="SECONDS", type=float, default=NOTICE_SECONDS)
    parser.add_argument("url", metavar="URL", nargs="?", default=f"file://{directory}/share")
    args = parser.parse_args()
    await run(directory, args.url, args.notice)


if __name__ == "__main__":
    sys.exit(in_directory(run_with_remote))
