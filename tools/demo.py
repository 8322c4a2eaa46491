"""A demo of the main features without a browser: a notebook's kernel is saved, suspended, and resumed under a new server.

It starts a JupyterLab server, runs cells over its websocket, saves while they run, suspends, checks that no process is left, stops
the server, starts another one, resumes, runs the next cell and compares. Any difference ends it with an error.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

JSON = dict[str, Any]

SETUP = """
import os, sqlite3, subprocess, threading, time
import numpy as np

name, table = "demo", {"answer": 42}
def squares():
    n = 0
    while True:
        yield n * n
        n += 1
generator = squares()
first = [next(generator) for _ in range(4)]

database = sqlite3.connect("demo.db")
database.execute("create table if not exists t (x integer)")
database.execute("insert into t values (7)")          # not committed: the transaction stays open

array = np.random.default_rng(1).standard_normal(1 << 27)   # 1 GB
total = float(array.sum())

ticks = []
def tick():
    while True:
        ticks.append(time.monotonic())
        time.sleep(0.001)
threading.Thread(target=tick, daemon=True).start()

child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
"""
GPU_SETUP = """
try:
    import torch
    on_gpu = torch.arange(1 << 28, dtype=torch.float32, device="cuda") if torch.cuda.is_available() else None
except ImportError:
    on_gpu = None
print("cuda tensor of 1 GB" if on_gpu is not None else "no GPU here")
"""
STATE = """
import json
child.stdin.write("still there\\n"); child.stdin.flush()
print(json.dumps({
    "variables": [name, table],
    "generator": next(generator),
    "open transaction": database.execute("select count(*), sum(x) from t").fetchone(),
    "array": float(array.sum()) == total,
    "thread ticks": len(ticks),
    "child": [child.pid, child.stdout.readline().strip(), child.poll()],
    "pid": os.getpid(),
    "clock": time.monotonic(),
    "gpu": None if on_gpu is None else float(on_gpu[-1000:].sum()),
}))
"""
#: The longest time between two ticks of the background thread since tick number {since}.
GAP = "print(max(b - a for a, b in zip(ticks[{since}:], ticks[{since} + 1:])))"


class DemoError(Exception):
    """An error for a difference that the demo found."""


def check(condition: object, message: str) -> None:
    """Raise DemoError with `message` unless `condition` is true."""
    if not condition:
        raise DemoError(message)


class Server:
    """A JupyterLab server in a process of its own.

    `module`: another server; `within`: a command that runs the command after it, e.g. in namespaces.
    """

    def __init__(
        self,
        directory: Path,
        *,
        module: str = "jupyterlab",
        options: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._token = secrets.token_hex(16)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        folders = {
            f"JUPYTER_{kind.upper()}_DIR": str(directory / kind)
            for kind in ("config", "data", "runtime")
        }
        env = {**os.environ, **folders, **(variables or {}), "JUPYTER_TOKEN": self._token}
        env["IPYTHONDIR"] = str(directory / "ipython")
        env["JUPYTER_GPUCKPT_DATA_DIR"] = str(directory / "gpuckpt")
        env["JUPYTER_GPUCKPT_RUNTIME_DIR"] = str(directory / "run")
        self.log = directory / "server.log"
        words = [*within, sys.executable, "-m", module, "--no-browser", "--ip=127.0.0.1"]
        words += [f"--port={self.port}", "--ServerApp.port_retries=0"]
        words += [f"--ServerApp.root_dir={directory / 'notebooks'}"]
        words += ["--ServerApp.allow_root=True"] if os.geteuid() == 0 else []
        words += options
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                words,
                cwd=directory,  # Python looks for modules there first: the checkout is not what is installed
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"token {self._token}"},
            timeout=300,
        )

    @property
    def pid(self) -> int:
        """Return the id of its process."""
        return self._process.pid

    def wait(self) -> None:
        """Wait until the server answers."""
        deadline = time.monotonic() + 60
        while True:
            try:
                self._client.get("/api/status").raise_for_status()
            except httpx.HTTPError:
                check(
                    self._process.poll() is None,
                    f"the server ended:\n{self.log.read_text()[-3000:]}",
                )
                check(time.monotonic() < deadline, "the server does not answer")
                time.sleep(0.1)
            else:
                return

    def request(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """Send a REST request and return the reply."""
        answer = self._client.request(method, path, json=body)
        check(answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.content else None

    def operation(self, verb: str, kernel_id: str) -> dict[str, Any]:
        """Start a save, suspend or resume, wait for its end, and return the operation."""
        operation = self.request("POST", f"/api/gpuckpt/kernels/{kernel_id}/{verb}", {})
        while operation["state"] == "running":
            operation = self.request(
                "GET", f"/api/gpuckpt/operations/{operation['operation_id']}?wait=10"
            )
        check(
            operation["state"] == "succeeded",
            f"{verb} failed: {json.dumps(operation['error'], indent=1)}",
        )
        return dict(operation["result"])

    async def connect(self, kernel_id: str) -> WebSocketClientConnection:
        """Return the websocket of a kernel, as a notebook page opens it."""
        return await websocket_connect(
            HTTPRequest(
                f"ws://127.0.0.1:{self.port}/api/kernels/{kernel_id}/channels",
                headers={"Authorization": f"token {self._token}"},
            )
        )

    def stop(self) -> None:
        """Stop the server as a user does, with SIGINT, and wait for its end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._client.close()


async def execute(connection: WebSocketClientConnection, code: str) -> str:
    """Run a cell and return its output. An error in the cell ends the demo."""
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": "execute_request",
        "username": "",
        "session": "demo",
        "version": "5.3",
    }
    content = {
        "code": code,
        "silent": False,
        "store_history": True,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": True,
    }
    message = {
        "header": header,
        "parent_header": {},
        "metadata": {},
        "content": content,
        "channel": "shell",
        "buffers": [],
    }
    await connection.write_message(json.dumps(message))
    output, replied, idle = "", False, False
    while not (replied and idle):
        text = await asyncio.wait_for(connection.read_message(), 120)
        check(text is not None, "the websocket was closed")
        answer = json.loads(text or "{}")
        if answer["parent_header"].get("msg_id") != header["msg_id"]:
            continue
        kind, body = answer["header"]["msg_type"], answer["content"]
        check(kind != "error", "\n".join(body.get("traceback", [])))
        output += body["text"] if kind == "stream" else ""
        replied |= kind == "execute_reply"
        idle |= kind == "status" and body["execution_state"] == "idle"
    return output


def processes_of(directory: Path) -> list[str]:
    """Return the kernel's processes: those whose working directory is the notebook's."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").resolve() == directory:
                found.append((entry / "comm").read_text().strip())
        except OSError:
            continue
    return found


class Table:
    """A table of the steps, with times and sizes."""

    def add(self, step: str, seconds: float | None = None, detail: str = "") -> None:
        """Add a row, and print it at once."""
        spent = "" if seconds is None else f"{seconds:.2f} s"
        print(f"{step:<30} {spent:>8}   {detail}".rstrip(), flush=True)


def megabytes(count: int) -> str:
    """Return a size as text."""
    return f"{count / 1e6:,.0f} MB"


def sizes(result: dict[str, Any]) -> str:
    """Return the size of a snapshot as text."""
    return f"{megabytes(result['raw_bytes'])} held, {megabytes(result['stored_bytes'])} stored, {megabytes(result['new_bytes'])} new"


async def run(directory: Path) -> None:
    """Run the demo under a first server, then under a second one."""
    table, notebooks = Table(), directory / "notebooks"
    notebooks.mkdir()
    empty = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (notebooks / "demo.ipynb").write_text(json.dumps(empty))
    session, state = await first_server(directory, table)
    left = processes_of(notebooks)
    check(not left, f"processes are left: {left}")
    await second_server(directory, table, session, state)


@asynccontextmanager
async def serving(directory: Path, table: Table, name: str) -> AsyncIterator[Server]:
    """Yield a running server, and stop it; show its log if the block fails."""
    began = time.monotonic()
    server = Server(directory)
    try:
        await asyncio.to_thread(server.wait)
        table.add(f"{name} server started", time.monotonic() - began)
        yield server
    except Exception:
        print(f"\nThe server's log ends with:\n{server.log.read_text()[-3000:]}", file=sys.stderr)
        raise
    await asyncio.to_thread(server.stop)
    table.add(f"{name} server stopped")


async def first_server(directory: Path, table: Table) -> tuple[JSON, JSON]:
    """Create state, save it while it changes, suspend the kernel; return the session and the last state."""
    async with serving(directory, table, "first") as server:
        kernel = {"name": "python3"}
        wanted = {"path": "demo.ipynb", "name": "demo.ipynb", "type": "notebook", "kernel": kernel}
        session = server.request("POST", "/api/sessions", wanted)
        kernel_id = session["kernel"]["id"]
        managed = server.request("GET", f"/api/gpuckpt/kernels/{kernel_id}")
        check(managed["managed"], f"not under the engine: {managed['reason']} {managed['hint']}")
        connection = await server.connect(kernel_id)
        began = time.monotonic()
        await execute(connection, SETUP)
        gpu = (await execute(connection, GPU_SETUP)).strip()
        what = f"variables, generator, sqlite, 1 GB array, thread, child, {gpu}"
        table.add("cells run", time.monotonic() - began, what)
        before = json.loads(await execute(connection, STATE))

        saved = await asyncio.to_thread(server.operation, "save", kernel_id)
        table.add("saved while it ran", saved["seconds"], sizes(saved))
        gap = float(await execute(connection, GAP.format(since=before["thread ticks"])))
        seen = f"the longest gap its thread saw: {gap:.2f} s"
        table.add("  of this it was paused", saved["frozen_seconds"], seen)
        between = json.loads(await execute(connection, STATE))
        compare(before, between)

        suspended = await asyncio.to_thread(server.operation, "suspend", kernel_id)
        table.add("suspended", suspended["seconds"], sizes(suspended))
        left = processes_of(directory / "notebooks")
        check(not left, f"processes are left: {left}")
        table.add("  no process is left")
        connection.close()
    return session, between


async def second_server(directory: Path, table: Table, session: JSON, before: JSON) -> None:
    """Check that the kernel is listed as suspended, resume it, and compare its state with `before`."""
    kernel_id = session["kernel"]["id"]
    async with serving(directory, table, "second") as server:
        again = server.request("GET", "/api/sessions")
        check([s["id"] for s in again] == [session["id"]], f"another session: {again}")
        check(again[0]["kernel"]["id"] == kernel_id, "the kernel id changed")
        check(again[0]["kernel"]["execution_state"] == "suspended", f"not suspended: {again[0]}")
        table.add("  same session and kernel", None, "listed as suspended")
        began = time.monotonic()
        connection = await server.connect(kernel_id)
        resumed = await asyncio.to_thread(server.operation, "resume", kernel_id)
        after = json.loads(await execute(connection, STATE))
        engine = f"of this the engine {resumed['seconds']:.2f} s"
        table.add("resumed, next cell answered", time.monotonic() - began, engine)
        compare(before, after)
        numbers = f"{before['generator']}, {after['generator']}"
        table.add("  everything is as it was", None, f"the generator goes on: {numbers}")
        connection.close()
        server.request("DELETE", f"/api/sessions/{session['id']}")


def compare(before: JSON, after: JSON) -> None:
    """Check that the state is equal, and that the generator has continued by one step."""
    for key in ("variables", "open transaction", "array", "child", "pid", "gpu"):
        check(before[key] == after[key], f"{key} changed: {before[key]} -> {after[key]}")
    check(
        round(after["generator"] ** 0.5) == round(before["generator"] ** 0.5) + 1,
        "the generator lost its place",
    )
    check(after["thread ticks"] > before["thread ticks"], "the background thread stands still")
    check(0 < after["clock"] - before["clock"] < 60, "time.monotonic() is not continuous")


def in_directory(work: Callable[[Path], Coroutine[Any, Any, None]]) -> int:
    """Run a demo in a directory of its own; return 0 when nothing was lost. Nothing is left of it, however it ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    directory = Path(tempfile.mkdtemp(prefix="gpuckpt-demo-", dir="/tmp"))

    async def run_and_end() -> None:
        try:
            await work(directory)
        finally:
            # Here, because a thread may wait for an answer of the server, and asyncio for that thread.
            end_processes(directory)

    try:
        asyncio.run(run_and_end())
    except DemoError as failure:
        print(f"\nThe demo failed: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nThe demo was interrupted.", file=sys.stderr)
        return 128 + signal.SIGINT
    finally:
        end_processes(directory)
        shutil.rmtree(directory, ignore_errors=True)
    return 0


def end_processes(directory: Path) -> None:
    """Kill the servers, daemons and kernels whose runtime directory is below this one, and those that they start meanwhile."""
    marker = f"JUPYTER_GPUCKPT_RUNTIME_DIR={directory}/".encode()
    deadline = time.monotonic() + 60
    while left := _with_variable(marker):
        check(time.monotonic() < deadline, f"these processes do not end: {left}")
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _with_variable(marker: bytes) -> list[int]:
    """Return the processes with a variable of their environment that begins with this text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if any(one.startswith(marker) for one in path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(in_directory(run))
