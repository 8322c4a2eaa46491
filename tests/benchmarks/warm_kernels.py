"""A kernel with its libraries loaded, from its start to the reply of an execute request: copies of a template beside stock kernels.

The request imports the libraries, which a copy has already, and is sent at once: nothing waits for the kernel to be ready. Processor
time is that of the daemon. Memory is what the kernels' processes take alone, and their share of what they have in common.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from queue import Empty
from typing import Any, cast

import psutil
from gpuckpt_provisioner.owner import ScriptOwner
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from jupyter_gpuckpt.client import Client, this_owner
from jupyter_gpuckpt.client.templates import TemplateFolder
from jupyter_gpuckpt.headless import template_builds
from jupyter_gpuckpt.wire import calls, daemon_settings
from jupyter_gpuckpt.wire.protocol import OwnerKind, WantedCopies

from .environment import daemon
from .machine import wide
from .measured import Row, ratios

SMALL = "numpy, pandas"
#: What is imported besides: the first that is installed, by what it is called.
LARGE = {
    "torch": "torch",
    "scikit-learn, Matplotlib, SciPy": "sklearn.ensemble, sklearn.pipeline, matplotlib.pyplot, scipy.stats, pandas",
}
#: How often one kernel is started alone, and ten at once; thirty at once once.
ROUNDS, ROUNDS_AT_ONCE = 7, 3
HELD = 20
#: With 16 cores.
BUDGET_SECONDS, READY_SECONDS, TEN_SECONDS, THIRTY_SECONDS = 0.20, 0.03, 0.6, 1.5
#: With any number of them.
PROCESSOR_SECONDS = 0.10
_PATIENCE, _ATTEMPTS = 300.0, 5


class _Ended(Exception):  # noqa: N818 - another attempt is made
    """A kernel has ended at its start: another program got one of its ports, which stock kernels do not hold."""


class _Kernel:
    """A kernel that is started, asked and ended."""

    def __init__(self, name: str, owner: ScriptOwner | None = None) -> None:
        self._manager = cast("Any", KernelManager(kernel_name=name))
        if owner is not None:
            self._manager.gpuckpt_owner = owner
        self._client: BlockingKernelClient | None = None

    def start(self, code: str) -> float:
        """Start it; return when it has replied. Raises RuntimeError if it is not what it should be."""
        self._manager.start_kernel()
        self._client = client = self._manager.client()
        client.start_channels()
        request = client.execute(code)
        while True:
            try:
                reply = client.get_shell_msg(timeout=1.0)
            except Empty:
                if not self._manager.is_alive():
                    raise _Ended from None
                continue
            if reply["parent_header"]["msg_id"] == request:
                break
        replied = time.monotonic()
        if reply["content"]["status"] != "ok":
            raise RuntimeError(str(reply["content"]))
        return replied

    @property
    def pid(self) -> int:
        """Its process."""
        return int(self._manager.provisioner.pid)

    @property
    def is_copy(self) -> bool:
        """Whether it is a template's copy."""
        return bool(self._manager.provisioner.kernel.moved_ports)

    def end(self) -> None:
        """End it."""
        if self._client is not None:
            self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.context.destroy(linger=0)


def run() -> Iterator[Row]:
    """One alone, a ready copy, ten and thirty at once; copies and stock in turn."""
    large, modules = next(
        (name, modules)
        for name, modules in LARGE.items()
        if all(map(_is_there, modules.split(", ")))
    )
    with daemon() as client:
        _make("small", f"import {SMALL}")
        _make("large", f"import {modules}")
        yield from _alone("small", SMALL, f"import {SMALL}")
        yield from _alone("large", large, f"import {modules}")
        yield from _ready(client, "small", SMALL, f"import {SMALL}")
        yield from _ready(client, "large", large, f"import {modules}")
        yield from _at_once(client, 10, ROUNDS_AT_ONCE, TEN_SECONDS)
        yield from _at_once(client, 30, 1, THIRTY_SECONDS)
        yield from _memory()


def _is_there(module: str) -> bool:
    return find_spec(module.partition(".")[0]) is not None


def _make(name: str, recipe: str) -> None:
    # Kernelspecs lie in the daemon's folder, too, and go with it.
    folder = Path(os.environ["JUPYTER_GPUCKPT_DATA_DIR"]).parent
    os.environ["JUPYTER_DATA_DIR"] = str(folder / "share")
    path = folder / f"{name}.py"
    path.write_text(recipe)
    settings = daemon_settings.from_environment()
    template_builds.create(settings, name, path, kernel="python3", progress=lambda done, of: None)


def _started(name: str, code: str, owner: ScriptOwner | None = None) -> float:
    """Start a kernel, end it; return the seconds until its reply."""
    kernel = _Kernel(name, owner)
    began = time.monotonic()
    try:
        replied = kernel.start(code)
        if name != "python3" and not kernel.is_copy:
            raise RuntimeError("it is no copy")
    finally:
        kernel.end()
    return replied - began


def _alone(name: str, libraries: str, code: str) -> Iterator[Row]:
    copies, stock = list[float](), list[float]()
    for _ in range(ROUNDS):
        copies.append(_started(name, code))
        with _stock():
            stock.append(_started("python3", code))
    yield Row(f"{libraries}: stock", stock)
    budget = wide(BUDGET_SECONDS) if libraries == "torch" else None
    yield Row(f"{libraries}: copy of a template", copies, budget=budget)
    yield Row("    stock takes so many times that", ratios(stock, copies), "x")


def _ready(client: Client, name: str, libraries: str, code: str) -> Iterator[Row]:
    settings = daemon_settings.from_environment()
    cache = TemplateFolder(settings.data, name).get().cache
    assert cache is not None
    owner, samples = this_owner(OwnerKind.SCRIPT), list[float]()
    log = settings.data / "log" / "gpuckptd.log"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    with client.hold(owner, lambda event: None):
        before = _readies(log)
        wanted = WantedCopies(cache.snapshot_id, 1, "", visible)
        client.send(calls.ready(owner.owner_id, [wanted]))
        for number in range(ROUNDS):
            deadline = time.monotonic() + _PATIENCE
            while _readies(log) <= before + number:
                if time.monotonic() > deadline:
                    raise RuntimeError("no copy is ready")
                time.sleep(0.05)
            samples.append(_started(name, code, ScriptOwner(settings, owner)))
        client.send(calls.ready(owner.owner_id, []))
    budget = wide(READY_SECONDS) if libraries == "torch" else None
    yield Row(f"{libraries}: ready copy", samples, budget=budget)


def _readies(log: Path) -> int:
    """Return how many copies have become ready so far."""
    return len(re.findall(r"is ready as process", log.read_text()))


def _at_once(client: Client, count: int, rounds: int, budget: float) -> Iterator[Row]:
    copies, stock, used = list[float](), list[float](), list[float]()
    code, pid = f"import {SMALL}", client.send(calls.handshake()).pid
    for _ in range(rounds):
        before = _processor_seconds(pid)
        with _held("small", code, count) as (last, _):
            used.append((_processor_seconds(pid) - before) / count)
            copies.append(last)
        with _stock():
            stock.append(_last_of_stock(code, count))
    yield Row(f"{SMALL}: {count} at once, the last one: stock", stock)
    yield Row(f"{SMALL}: {count} at once, the last one: copies", copies, budget=wide(budget))
    yield Row("    stock takes so many times that", ratios(stock, copies), "x")
    most = PROCESSOR_SECONDS if count < HELD else None
    yield Row("    processor time of the daemon for each copy", used, budget=most)


def _last_of_stock(code: str, count: int) -> float:
    for _ in range(_ATTEMPTS):
        with suppress(_Ended), _held("python3", code, count) as (last, _):
            return last
    raise RuntimeError("stock kernels do not start at once")


def _memory() -> Iterator[Row]:
    code = f"import {SMALL}"
    with _held("small", code, HELD) as (_, kernels):
        yield Row(f"{SMALL}: memory of {HELD} copies", [_memory_of(kernels)], "MB")
    with _stock(), _held("python3", code, HELD) as (_, kernels):
        yield Row(f"{SMALL}: memory of {HELD} stock kernels", [_memory_of(kernels)], "MB")


def _memory_of(kernels: list[_Kernel]) -> float:
    return sum(psutil.Process(one.pid).memory_full_info().pss for one in kernels) / 1e6


@contextmanager
def _held(name: str, code: str, count: int) -> Iterator[tuple[float, list[_Kernel]]]:
    """Start kernels at once; yield the seconds until the last reply, and the kernels."""
    kernels = [_Kernel(name) for _ in range(count)]
    with ExitStack() as ends, ThreadPoolExecutor(count) as pool:
        for kernel in kernels:
            ends.callback(kernel.end)
        began = time.monotonic()
        replied = list(pool.map(lambda kernel: kernel.start(code), kernels))
        if name != "python3" and not all(kernel.is_copy for kernel in kernels):
            raise RuntimeError("not all are copies")
        yield max(replied) - began, kernels


@contextmanager
def _stock() -> Iterator[None]:
    """Start kernels without the engine during the block."""
    factory = KernelProvisionerFactory.instance()
    before = factory.default_provisioner_name
    factory.default_provisioner_name = "local-provisioner"
    try:
        yield
    finally:
        factory.default_provisioner_name = before


def _processor_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
