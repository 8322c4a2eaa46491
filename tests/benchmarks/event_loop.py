"""How late the Jupyter server's event loop is while kernels are saved and resumed, beside a server with stock kernels."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.wire import calls
from tests.server.conftest import Server

from .loop_probe import ROUTE
from .measured import Row

ROUNDS = 5
BUDGET_RATIO = 2.0
BUDGET_BLOCK_SECONDS = 0.25
MEMORY_MB = 400
PROBE = "--ServerApp.jpserver_extensions=tests.benchmarks.loop_probe=True"
STOCK = "--KernelProvisionerFactory.default_provisioner_name=local-provisioner"
#: Two kernels that talk all the time, and one that is saved.
TALK = "import time\nwhile True:\n    print('x' * 80)\n    time.sleep(0.01)"
HOLD = f"import os; data = os.urandom({MEMORY_MB} << 20)"
#: A stock kernel that is busy, with as many threads as a save has here.
COMPUTE = """
import hashlib, os
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
    list(pool.map(lambda _: hashlib.blake2b(data).digest(), range(4)))
"""
#: What a stock kernel does to keep its data: as many threads as a save has here read all of it and write it to the disk.
KEEP = """
import hashlib, os
from concurrent.futures import ThreadPoolExecutor
piece = 4 << 20
def keep(start):
    hashlib.blake2b(data[start : start + piece]).digest()
    os.pwrite(file.fileno(), data[start : start + piece], start)
with open("kept", "wb") as file, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
    list(pool.map(keep, range(0, len(data), piece)))
    os.fsync(file.fileno())
os.remove("kept")
"""


def run() -> Iterator[Row]:
    """Three kernels on each server; ours is measured while the third is saved, suspended and resumed."""
    folder = Path(tempfile.mkdtemp(prefix="gpuckpt-bench-"))
    environment = {
        **os.environ,
        "JUPYTER_GPUCKPT_DATA_DIR": str(folder / "data"),
        "JUPYTER_GPUCKPT_RUNTIME_DIR": str(folder / "run"),
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_DATA_DIR": str(folder / "jupyter"),
        "PYTHONPATH": str(Path(__file__).parent.parent.parent),
    }
    late: dict[str, list[float]] = defaultdict(list)
    for name, options in (("stock", [PROBE, STOCK]), ("ours", [PROBE])):
        (folder / name).mkdir()
        server = Server(folder / name, environment, *options).start()
        try:
            held = _kernels(server)
            for _ in range(ROUNDS):
                if name == "stock":
                    for code in (COMPUTE, KEEP):
                        late[code] += _measured(server, partial(server.page(held).run, code))
                else:
                    for verb in ("save", "suspend", "resume"):
                        late[verb] += _measured(server, partial(server.do, verb, held))
        finally:
            server.kill()
    _end(environment)
    shutil.rmtree(folder, ignore_errors=True)
    stock = _p99(late[KEEP])
    yield Row("event loop late beside a stock kernel that computes: p99", [_p99(late[COMPUTE])])
    yield Row("  that writes its data to a file: p99", [stock])
    for verb in ("save", "suspend", "resume"):
        yield Row(f"  during a {verb}: p99", [_p99(late[verb])])
        yield Row(f"  during a {verb}: ratio", [_p99(late[verb]) / stock], "x", BUDGET_RATIO)
        yield Row(f"  during a {verb}: longest block", [max(late[verb])], "s", BUDGET_BLOCK_SECONDS)


def _kernels(server: Any) -> str:
    for name in "ab":
        server.open(f"{name}.ipynb").execute(TALK)
    page = server.open("held.ipynb")
    page.run(HOLD)
    return str(page.kernel_id)


def _measured(server: Any, work: Any) -> list[float]:
    server.get(ROUTE[1:])
    work()
    found: list[float] = server.get(ROUTE[1:])
    return found


def _p99(samples: list[float]) -> float:
    return statistics.quantiles(samples, n=100)[98]


def _end(environment: dict[str, str]) -> None:
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        with Client.connect() as client:
            pid = client.send(calls.handshake()).pid
            for kernel in client.send(calls.kernels()):
                client.send(calls.kill(kernel.kernel_id))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    finally:
        os.environ.clear()
        os.environ.update(before)
