"""Reading all memory of a kernel, nothing stored: ours by 1 to 16 threads, beside `criu dump --stream` into nothing.

Both begin with a kernel that runs, and end when every byte was read once.
"""

from __future__ import annotations

import mmap
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from jupyter_gpuckpt.engine.freeze import Frozen, frozen
from jupyter_gpuckpt.engine.preflight import plan
from jupyter_gpuckpt.wire.manifest_records import SaveOptions
from jupyter_gpuckpt.wire.progress import Progress

from . import stock_criu
from .engine_kernel import EngineKernel, engine_kernel, holding, scratch
from .machine import cores, thread_counts, wide
from .measured import Row, ratios
from .room import GB, scaled

ROUNDS = 5
BUDGET_RATIO = 3.0
_PIECE = 4 << 20


class _Read(Exception):  # noqa: N818 - not an error: leaves the block, which undoes the freeze
    pass


def run() -> Iterator[Row]:
    """Every number of threads, and CRIU's, in turn."""
    size = scaled(1.0, max_gb=8, memory=1.5, disk=0)
    counts = thread_counts()
    ours = defaultdict[int, list[float]](list)
    reading = defaultdict[int, list[float]](list)
    theirs = []
    with scratch() as directory, engine_kernel(directory, holding(size, "random")) as kernel:
        for number in range(ROUNDS):
            for threads in counts:
                whole, read = _ours(kernel, threads)
                ours[threads].append(whole)
                reading[threads].append(size / read)
            images = directory / f"images-{number}"
            theirs.append(stock_criu.dump_to_nowhere(kernel, images))
    yield Row(f"criu dump --stream of {size:g} GB to nowhere", theirs)
    for threads in counts:
        rate = [size / seconds for seconds in ours[threads]]
        yield Row(f"frozen and read by {threads} threads", ours[threads])
        yield Row(
            "    with the freeze",
            rate,
            "GB/s",
            chart="memory of a kernel read",
            series="frozen and read",
            x=threads,
            x_unit="threads",
        )
        yield Row(
            "    the reading alone",
            reading[threads],
            "GB/s",
            chart="memory of a kernel read",
            series="read",
            x=threads,
            x_unit="threads",
        )
        yield Row(
            "    --stream takes so many times that",
            ratios(theirs, ours[threads]),
            "x",
            wide(BUDGET_RATIO) if threads == min(cores(), 16) else None,
            at_least=True,
        )
    yield Row(
        "criu dump --stream",
        [size / seconds for seconds in theirs],
        "GB/s",
        chart="memory of a kernel read",
        series="criu dump --stream",
        x=1,
        x_unit="threads",
    )


def _ours(kernel: EngineKernel, threads: int) -> tuple[float, float]:
    """Seconds from the beginning of the freeze to the last byte, and of the reading alone. The kernel runs on afterwards."""
    began, read = time.monotonic(), 0.0
    chosen = plan(kernel.tree, kernel.settings, private_shm=True, stop=True, gpu_bytes=0)
    try:
        options = SaveOptions(stop=True)
        with frozen(kernel.tree, chosen, kernel.settings, options, progress=Progress()) as state:
            from_here = time.monotonic()
            total = _read_all(state, threads)
            ended = time.monotonic()
            assert total > GB // 20
            raise _Read
    except _Read:
        read = ended - from_here
    return ended - began, read


def _read_all(state: Frozen, threads: int) -> int:
    jobs = [(memory, start) for memory in state.memory for start in range(0, memory.length, _PIECE)]
    buffers = [memoryview(mmap.mmap(-1, _PIECE)) for _ in range(threads)]

    def read(number: int) -> int:
        count = 0
        for memory, start in jobs[number::threads]:
            part = buffers[number][: min(_PIECE, memory.length - start)]
            memory.read_into(start, part)
            count += len(part)
        return count

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(read, range(threads)))
