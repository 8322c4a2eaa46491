"""Kinds of data: how much smaller they are stored, and how fast they are packed and unpacked by 1 to 16 threads.

Packing cuts, hashes, compresses and appends to a store that lies in memory where there is room for it; unpacking reads,
decompresses, verifies and writes into memory that is there already. Neither has anything to do with kernels.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jupyter_gpuckpt.images.pack import BytesSource, pack
from jupyter_gpuckpt.images.unpack import Unpacking
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.progress import Progress

from . import memory_kinds, room
from .machine import thread_counts
from .measured import Row
from .room import GB

ROUNDS = 3
GB_PER_CORE = 0.125


def run() -> Iterator[Row]:
    """Every number of threads in turn, for each kind."""
    size = room.scaled(GB_PER_CORE, max_gb=2, memory=3.5, disk=1.5)
    for kind in memory_kinds.KINDS:
        yield from _measure(kind, memory_kinds.fill(int(size * GB), [kind]))


class _Memory:
    """A sink that is memory."""

    def __init__(self, length: int) -> None:
        self.bytes = np.ones(length, np.uint8)  # written to: its pages are there

    def write(self, offset: int, data: memoryview) -> None:
        self.bytes[offset : offset + len(data)] = np.frombuffer(data, np.uint8)


def _measure(kind: str, memory: np.ndarray) -> Iterator[Row]:
    packing, unpacking = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    sink = _Memory(len(memory))
    ratio = 0.0
    for _ in range(ROUNDS):
        for threads in thread_counts():
            seconds, ratio, found = _round(memory, sink, threads)
            packing[threads].append(len(memory) / GB / seconds)
            unpacking[threads].append(len(memory) / GB / found)
    # What are zeros in the memory is not written.
    assert np.array_equal(np.where(memory, sink.bytes, 0), memory)
    yield Row(
        f"{kind}: stored so many times smaller",
        [ratio],
        "x",
        chart="stored so many times smaller",
        series="store",
        x=kind,
    )
    for name, rates in (("pack", packing), ("unpack", unpacking)):
        for threads, samples in rates.items():
            yield Row(
                f"    {name} {len(memory) / GB:.1f} GB by {threads} threads",
                samples,
                "GB/s",
                chart=name,
                series=kind,
                x=threads,
                x_unit="threads",
            )


def _round(memory: np.ndarray, sink: _Memory, threads: int) -> tuple[float, float, float]:
    """Seconds of packing, the ratio, seconds of unpacking."""
    folder = _memory_folder(len(memory))
    try:
        with LocalStore(folder / "store") as store:
            source = BytesSource("memory", memoryview(memory))
            began = time.monotonic()
            packed = pack([source], store, threads=threads, progress=Progress())
            between = time.monotonic()
            Unpacking([(packed.streams[0], sink)], store, threads=threads).run(Progress())
            ended = time.monotonic()
    finally:
        shutil.rmtree(folder)
    return between - began, packed.raw_bytes / packed.new_bytes, ended - between


def _memory_folder(length: int) -> Path:
    """Return a folder on a tmpfs if twice that fits, else on the disk."""
    shm = Path("/dev/shm")
    fits = shm.is_dir() and shutil.disk_usage(shm).free > 2 * length
    return Path(tempfile.mkdtemp(prefix="gpuckpt-bench-", dir=shm if fits else room.folder()))
