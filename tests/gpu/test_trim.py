"""What frameworks keep of the GPU for the next tensor is given back before snapshots that nobody asked for, and is kept before others."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jupyter_gpuckpt.engine.gpu.driver import cuda
from jupyter_gpuckpt.host import gpu, processes
from tests.server.conftest import Page, Server, eventually, make_server

__all__ = ["eventually", "make_server"]

pytestmark = pytest.mark.gpu

GB = 1 << 30
INTERVAL = 5.0
#: 256 MB that are in use, taken first so that they lie in none of the 2 GB that are freed. `total` needs no memory worth
#: mentioning, `kept` is what the framework has of the GPU in bytes.
SETUP = {
    "torch": """
        import torch
        live = torch.arange(1 << 26, dtype=torch.int32, device="cuda")
        freed = [torch.full((1 << 30,), 7, dtype=torch.uint8, device="cuda") for _ in range(2)]
        torch.cuda.synchronize()
        del freed
        def total():
            return sum(int(part.sum(dtype=torch.int64)) for part in live.split(1 << 20))
        def kept():
            return torch.cuda.memory_reserved()
    """,
    "cupy": """
        import cupy
        live = cupy.arange(1 << 26, dtype=cupy.int32)
        freed = [cupy.full(1 << 30, 7, dtype=cupy.uint8) for _ in range(2)]
        cupy.cuda.get_current_stream().synchronize()
        del freed
        def total():
            return int(live.sum(dtype=cupy.int64))
        def kept():
            return cupy.get_default_memory_pool().total_bytes()
    """,
}
TOTAL = f"{((1 << 26) - 1) << 25}\n"
LIVE, FREED = GB // 4, 2 * GB
#: The live tensor, the CUDA context and what Python holds.
SMALL = 3 * GB // 2

#: A program that loads a framework, trims, and then uses the GPU, each when it is told to.
USE = {
    "torch": "torch.zeros(1, device='cuda'); torch.cuda.synchronize()",
    "cupy": "cupy.zeros(1); cupy.cuda.get_current_stream().synchronize()",
}
PROGRAM = """
import {framework}
from jupyter_gpuckpt.kernel_agent.trim import trim
print("imported", flush=True)
input()
trim(1.0)
print("trimmed", flush=True)
input()
{use}
print("used", flush=True)
input()
"""


@pytest.fixture(params=sorted(SETUP))
def framework(request: pytest.FixtureRequest) -> str:
    """Its name, where it is installed and there is a GPU."""
    pytest.importorskip(request.param)
    if not gpu.gpus():
        pytest.skip("there is no GPU here")
    return str(request.param)


def filled(server: Server, framework: str) -> Page:
    """Return a kernel with memory in use and unused memory."""
    page = server.open()
    page.run(textwrap.dedent(SETUP[framework]))
    return page


def snapshots(server: Server, page: Page, cause: str, after: float = 0.0) -> list[dict[str, Any]]:
    """Those of the kernel with this cause, begun after a moment; newest first."""
    listed = server.get("api/gpuckpt/snapshots")["snapshots"]
    mine = [one for one in listed if one["kernel_id"] == page.kernel_id]
    return [one for one in mine if one["cause"] == cause and one["created"] > after]


def sizes(snapshot: dict[str, Any]) -> tuple[int, int]:
    """Of all that is in it, and of the GPU's part, in bytes."""
    print(f"{snapshot['raw_bytes']:,} bytes, of these {snapshot['gpu_bytes']:,} from the GPU")
    return snapshot["raw_bytes"], snapshot["gpu_bytes"]


def test_what_a_framework_keeps_does_not_reach_a_periodic_snapshot(
    make_server: Callable[..., Server],
    eventually: Callable[..., Any],
    framework: str,
) -> None:
    options = {"lose_at_most": INTERVAL, "autosave_cost": 1000}
    words = [f"--GpuCkptServer.{name}={value}" for name, value in options.items()]
    server = make_server(*words).start()
    page = filled(server, framework)
    # One that began while the cell was still running left everything as it was: the next one finds the kernel idle.
    for change in range(2):
        began = time.time()
        page.run(f"change = {change}")
        eventually(lambda began=began: snapshots(server, page, "autosave", began), 60)
    everything, from_gpu = sizes(snapshots(server, page, "autosave")[0])
    assert LIVE < from_gpu < everything < SMALL
    assert LIVE <= int(page.run("print(kept())")) < LIVE + FREED // 8
    assert page.run("print(total())") == TOTAL
    server.do("suspend", page.kernel_id)
    server.do("resume", page.kernel_id)
    assert page.run("print(total())") == TOTAL


@pytest.mark.parametrize("trim", [True, False])
def test_what_a_framework_keeps_is_in_the_snapshot_of_a_stop_only_without_the_trait(
    make_server: Callable[..., Server], framework: str, trim: bool
) -> None:
    server = make_server(f"--GpuCkptServer.trim={trim}").start()
    page = filled(server, framework)
    report = server.request("POST", "api/gpuckpt/suspend_all", json={"within": 60}).json()
    assert [kernel["saved"] for kernel in report["kernels"]] == [True], report
    (snapshot,) = snapshots(server, page, "shutdown")
    everything, from_gpu = sizes(snapshot)
    if trim:
        assert LIVE < from_gpu < everything < SMALL
    else:
        assert LIVE + FREED < from_gpu < everything
    # The cell brings it back.
    assert page.run("print(total())") == TOTAL


def test_a_snapshot_that_was_asked_for_has_all_of_it(
    make_server: Callable[..., Server], framework: str
) -> None:
    server = make_server().start()
    page = filled(server, framework)
    server.do("save", page.kernel_id)
    (snapshot,) = snapshots(server, page, "manual")
    everything, from_gpu = sizes(snapshot)
    assert LIVE + FREED < from_gpu < everything
    assert int(page.run("print(kept())")) >= LIVE + FREED


@contextmanager
def running(framework: str) -> Iterator[tuple[int, Callable[[], str]]]:
    """Yield the program's pid, and what has it take its next step and gives the name of that."""
    with subprocess.Popen(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            PROGRAM.format(framework=framework, use=USE[framework]),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told, said = process.stdin, process.stdout

        def step() -> str:
            told.write("\n")
            told.flush()
            return said.readline()

        try:
            assert said.readline() == "imported\n"
            yield process.pid, step
        finally:
            process.kill()


def touched(pid: int) -> tuple[list[str], bool, int]:
    """Return a process's use of the GPU: descriptors, a context, memory."""
    devices = [path for path in processes.descriptors(pid).values() if "/nvidia" in path]
    return devices, cuda.is_cuda_process(pid), sum(gpu.memory_of([pid]).values())


def test_a_framework_that_is_loaded_and_uses_no_gpu_is_left_alone(framework: str) -> None:
    with running(framework) as (pid, step):
        before = touched(pid)
        assert step() == "trimmed\n"
        assert touched(pid) == before
        assert step() == "used\n"
        assert touched(pid) != before
