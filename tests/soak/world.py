"""A Jupyter server with ten kernels whose state is known, and what may be done to them."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import httpx
import websocket

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.host import criu_program, processes
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.daemon_settings import from_environment
from tests.conftest import end_everything_below, environment
from tests.server.conftest import Server
from tests.server.page import Page

KERNELS = 10
#: A state that lasts longer than this, while nothing is asked of a kernel, is stuck. Seconds.
STUCK_SECONDS = 10.0
STEADY = {"running", "suspended"}

#: Every kernel has memory with a digest, an open file, a thread and a child that answers.
BEGIN = """
import hashlib, os, subprocess, threading
n = 0
data = os.urandom({size})
digest = hashlib.blake2b(data).hexdigest()
log = open("kernel-{number}.log", "w+")
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
event = threading.Event()
threading.Thread(target=event.wait, daemon=True).start()
"""
USE = """
n += 1
child.stdin.write(b"%d\\n" % n)
child.stdin.flush()
log.write("x")
log.flush()
print(n, child.stdout.readline().decode().strip(), hashlib.blake2b(data).hexdigest() == digest, threading.active_count() > 1)
"""


@dataclass
class Model:
    """What a kernel must be: the count of its cells, now and in each of its snapshots."""

    kernel_id: str
    name: str
    count: int = 0
    snapshots: dict[str, int] = field(default_factory=dict)


@dataclass
class Sample:
    """Memory (bytes) and open descriptors of the daemon and the server, after `seconds`."""

    seconds: float
    daemon_bytes: int
    daemon_descriptors: int
    server_bytes: int
    server_descriptors: int


class World:
    """The server, its kernels and a record of what happened. Use as a context manager.

    Raises AssertionError where a kernel is not what it must be.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.began = time.monotonic()
        self.steps: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        #: The longest that a kernel was in a transient state after a kill. Seconds.
        self.longest_transient = 0.0
        self.samples: list[Sample] = []
        self.models: list[Model] = []
        #: The traceback of the first failure.
        self.failure = ""

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="gpuckpt-", dir="/tmp"))
        criu = criu_program.find()
        assert criu is not None, "no CRIU was found"
        env = environment(criu, self.folder)
        os.environ.update({name: text for name, text in env.items() if "JUPYTER" in name})
        self.server = Server(self.folder, env, "--GpuCkptServer.undo_shutdown_for=0").start()
        for number in range(KERNELS):
            self._add(number)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self.server.kill()
        end_everything_below(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _add(self, number: int) -> None:
        page = self.server.open(f"{number}.ipynb")
        page.run(BEGIN.format(size=20_000_000 + number * 4_000_000, number=number))
        self.models.append(Model(page.kernel_id, f"{number}.ipynb"))

    # What users do.

    def use(self, model: Model) -> None:
        """Run a cell, which resumes a suspended kernel, and compare what it prints."""
        self.steps["run a cell"] += 1
        page = self._page(model)
        model.count += 1
        printed = page.run(USE)
        expected = f"{model.count} {model.count} True True\n"
        if printed != expected:
            told = [message["content"] for message in page.received]
            raise AssertionError(f"{model.name}: {printed!r} instead of {expected!r}; {told[-8:]}")

    def interrupt(self, model: Model) -> None:
        """Interrupt a cell that runs."""
        self.steps["interrupt a cell"] += 1
        page = self._page(model)
        request = page.execute("print('on'); import time; time.sleep(1000)")
        page.wait_for(
            lambda m: m["parent_header"].get("msg_id") == request and m["msg_type"] == "stream"
        )
        self.server.request("POST", f"api/kernels/{model.kernel_id}/interrupt")
        assert page.reply(request)["content"]["ename"] == "KeyboardInterrupt"

    def save(self, model: Model) -> None:
        self._operate("save", model)

    def suspend(self, model: Model) -> None:
        self._operate("suspend", model)

    def resume(self, model: Model) -> None:
        self._operate("resume", model)

    def roll_back(self, model: Model) -> None:
        """Go back to a random snapshot of the kernel."""
        mine = self._listed(model)
        if not mine:
            return
        chosen = self.random.choice(sorted(mine))
        self.steps["restore a snapshot"] += 1
        self.server.do("roll_back", model.kernel_id, snapshot_id=chosen)
        model.count = model.snapshots[chosen]

    def delete(self, model: Model) -> None:
        """Delete a random snapshot, which is refused for one that a suspended kernel needs."""
        mine = self._listed(model)
        if mine:
            self.steps["delete a snapshot"] += 1
            chosen = self.random.choice(sorted(mine))
            answer = self.server.request("DELETE", f"api/gpuckpt/snapshots/{chosen}", ok=False)
            assert answer.is_success or answer.json()["code"] == "snapshot_in_use", answer.text

    def restart_server(self) -> None:
        """Stop the server, which suspends all kernels, and start it again."""
        self.steps["stop and start the server"] += 1
        self.server.stop(signal.SIGTERM)
        self.server.start()
        self.wait_for_steady_states()

    # What happens to them.

    def kill(self, whom: str, verb: str, model: Model, moment: float) -> None:
        """Begin an operation, and kill a process of it at a moment between 0 and 1; then everything must be right again.

        A CRIU lives for a tenth of a second: it is waited for, and killed within 0.1 s. The others are killed within 1.2 s.
        """
        asked = threading.Thread(target=self._begin, args=(verb, model), daemon=True)
        asked.start()
        if whom == "criu":
            while asked.is_alive() and not self._victims(whom):
                time.sleep(0.001)
        time.sleep(moment * (0.1 if whom == "criu" else 1.2))
        victims = self._victims(whom)
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        asked.join(60)
        if victims:
            self.kills[f"{whom} during {verb}"] += 1
        if self.server.process.poll() is not None or self.server.process.pid in victims:
            self.server.kill()
            self.server.start()
        self.wait_for_steady_states()
        self.use(model)
        self.use(self.random.choice(self.models))

    def wait_for_steady_states(self) -> None:
        """Wait until no kernel is in a transient state, and fail where one stays in it; none may be lost."""
        began = time.monotonic()
        while True:
            states = self.states()
            wrong = {name: state for name, state in states.items() if state not in STEADY}
            if not wrong:
                break
            assert "lost" not in wrong.values(), wrong
            seconds = time.monotonic() - began
            assert seconds < STUCK_SECONDS, f"stuck for {seconds:.0f} s: {wrong}"
            time.sleep(0.05)
        self.longest_transient = max(self.longest_transient, time.monotonic() - began)

    def sample(self) -> None:
        """Note memory and descriptors of daemon and server."""
        with Client.connect(from_environment()) as client:
            daemon = client.send(calls.handshake()).pid
        server = self.server.process.pid
        self.samples.append(
            Sample(
                time.monotonic() - self.began,
                processes.resident_bytes(daemon),
                len(processes.descriptors(daemon)),
                processes.resident_bytes(server),
                len(processes.descriptors(server)),
            )
        )

    def leftovers(self) -> list[str]:
        """Return what should not be there when nothing is in flight: CRIU, images in scratch, half-written files."""
        found = [
            f"process {pid} (criu)"
            for pid in processes.every()
            if processes.name(pid) == "criu" and self._is_ours(pid)
        ]
        data = self.folder / "data"
        found += [str(path) for path in data.rglob("*.tmp")]
        found += [str(path) for path in data.glob("spill/*")]
        return found

    def states(self) -> dict[str, str]:
        """Return the state of every kernel by its notebook."""
        known = {
            kernel["kernel_id"]: kernel["state"]
            for kernel in self.server.get("api/gpuckpt/kernels")["kernels"]
        }
        return {model.name: known.get(model.kernel_id, "missing") for model in self.models}

    def _page(self, model: Model) -> Page:
        for page in self.server.pages:
            page.close()
        self.server.pages = []
        return self.server.page(model.kernel_id)

    def _operate(self, verb: str, model: Model) -> None:
        self.steps[verb] += 1
        operation = self.server.finish(self.server.begin(verb, model.kernel_id))
        assert operation["state"] == "succeeded", operation
        if verb != "resume":
            model.snapshots[operation["result"]["snapshot_id"]] = model.count

    def _begin(self, verb: str, model: Model) -> None:
        with contextlib.suppress(
            AssertionError, httpx.HTTPError, websocket.WebSocketException, OSError
        ):
            operation = self.server.begin(verb, model.kernel_id)
            self.server.finish(operation)

    def _listed(self, model: Model) -> set[str]:
        """Return the kernel's snapshots whose count is known: one whose save was cut off may be there as well."""
        listed = self.server.get(f"api/gpuckpt/snapshots?kernel_id={model.kernel_id}")["snapshots"]
        return {each["snapshot_id"] for each in listed} & set(model.snapshots)

    def _victims(self, whom: str) -> list[int]:
        if whom == "server":
            return [self.server.process.pid]
        found = [
            pid
            for pid in processes.every()
            if (kind := _kind(pid)) and whom in (kind, "everything") and self._is_ours(pid)
        ]
        return [*found, *([self.server.process.pid] if whom == "everything" else [])]

    def _is_ours(self, pid: int) -> bool:
        environment = processes.environment(pid)
        return str(self.folder) in (
            "".join(environment.values()) + " ".join(processes.arguments(pid))
        ) or any(pid in processes.descendants(each) for each in self._roots())

    def _roots(self) -> Iterator[int]:
        """Return the daemon and the inits, whose children may name nothing of ours."""
        for pid in processes.every():
            words = processes.arguments(pid)
            is_init = bool(words) and "gpuckpt-init" in words[0]
            if (is_init or _kind(pid) == "daemon") and str(self.folder) in " ".join(words):
                yield pid


def _kind(pid: int) -> str:
    """Return what a process is of our own: criu, worker, daemon, or nothing."""
    if processes.name(pid) == "criu":
        return "criu"
    words = processes.arguments(pid)
    if "jupyter_gpuckpt.images.fork_server" in words:
        return "worker"
    return "daemon" if "jupyter_gpuckpt.daemon" in words else ""
