"""Notebooks of one user whose GPU memory is twice that of the GPU, with cells at random times: all results are right.

Needs 115 GB of RAM and, for as many cells as the default, half an hour. GPUCKPT_NOTEBOOK_CELLS: how many cells; GPUCKPT_NOTEBOOK_GB: the
GPU memory of each notebook.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from jupyter_gpuckpt.host import gpu
from tests.server.conftest import make_server  # noqa: F401 - a fixture

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(3600)]

GB = 1 << 30
NOTEBOOKS = 8
NOTEBOOK_GB = int(os.environ.get("GPUCKPT_NOTEBOOK_GB", "20"))
CELLS = int(os.environ.get("GPUCKPT_NOTEBOOK_CELLS", "500"))
#: The room on the GPU.
ROOM_GB = NOTEBOOKS * NOTEBOOK_GB // 2
#: The mean pause between two cells of a notebook, and what a cell computes for, in seconds.
PAUSE, COMPUTES = 30.0, 2.0
SETUP = f"""
import json, time, torch
parts = [torch.full((1 << 28,), number, device="cuda", dtype=torch.int32) for number in range({NOTEBOOK_GB - 1})]
one = torch.rand(2048, 2048, device="cuda")
def step():
    began = time.monotonic()
    for part in parts:
        part += 1
    found = [int(part.sum(dtype=torch.int64)) for part in parts]
    while time.monotonic() - began < {COMPUTES}:
        (one @ one).sum().item()
    return {{"found": found, "seconds": time.monotonic() - began}}
"""


def expected(cell: int) -> list[int]:
    """Return the expected sum of each part after a number of cells."""
    return [(number + cell) << 28 for number in range(NOTEBOOK_GB - 1)]


def test_all_results_are_right_and_no_cell_lacks_memory(make_server, hog) -> None:  # noqa: F811
    pytest.importorskip("torch")
    if not gpu.gpus():
        pytest.skip("there is no GPU here")
    with hog(leave=ROOM_GB * GB):
        server = make_server("--GpuCkptServer.gpu_wait=120").start()
        pages = [server.open(f"notebook-{number}.ipynb") for number in range(NOTEBOOKS)]
        for page in pages:
            page.run(SETUP)
            server.do("park", page.kernel_id)
        with ThreadPoolExecutor(NOTEBOOKS) as threads:
            waits = [*threads.map(used, pages, range(NOTEBOOKS))]
    ordered = sorted(wait for each in waits for wait in each)
    print(
        f"{len(ordered)} cells of {NOTEBOOKS} notebooks of {NOTEBOOK_GB} GB: waits of {statistics.median(ordered):.2f} s (median),"
        f" {ordered[int(0.95 * len(ordered))]:.2f} s (95th percentile), {ordered[-1]:.2f} s (longest)"
    )


def used(page, seed: int) -> list[float]:
    """Run cells at random times and check what each computes; return what each waited beside computing, in seconds."""
    source = random.Random(seed)
    waits = []
    for cell in range(1, CELLS // NOTEBOOKS + 1):
        time.sleep(source.expovariate(1 / PAUSE))
        began = time.monotonic()
        told = json.loads(page.run("print(json.dumps(step()))"))
        waits.append(time.monotonic() - began - told["seconds"])
        assert told["found"] == expected(cell)
    return waits
