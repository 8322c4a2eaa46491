"""How much memory a benchmark may take: sizes are reduced to what this machine has, and the rows say which were used."""

from __future__ import annotations

import mmap
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from jupyter_gpuckpt.host import processes

from .machine import cores

GB = 10**9
#: Left to everybody else.
_SPARE_BYTES = GB
#: The part of the free memory that `touch_memory` uses at most.
_TOUCHED_SHARE = 0.75


class Skipped(Exception):  # noqa: N818 - an outcome
    """This benchmark cannot run here; the message says why."""


def fitting(wanted_gb: list[float], *, memory: float, disk: float) -> list[float]:
    """Return the sizes that fit. `memory`, `disk`: how many times its size a benchmark takes of each.

    The largest that fits takes the place of those that do not, if it is worth a row of its own. Raises Skipped when none does.
    """
    free = min(
        (processes.mem_available() - _SPARE_BYTES) / memory,
        (shutil.disk_usage(folder()).free - _SPARE_BYTES) / disk if disk else float("inf"),
    )
    most = int(free / GB * 10) / 10
    fits = [size for size in wanted_gb if size <= most]
    if len(fits) < len(wanted_gb) and most >= (1.25 * fits[-1] if fits else 0.1):
        fits.append(most)
    if not fits:
        raise Skipped(f"no room for {min(wanted_gb):g} GB: {most:g} GB would fit")
    return fits


def scaled(gb_per_core: float, *, max_gb: float, memory: float, disk: float) -> float:
    """One size, in GB: more where there are more processors, as far as it fits."""
    return fitting([min(max_gb, gb_per_core * cores())], memory=memory, disk=disk)[0]


def touch_memory(wanted_gb: float) -> None:
    """Allocate up to `wanted_gb` of the free memory, write to all of it once, and free it.

    A virtual machine may get memory from its host only when it is used for the first time, which takes longer than most copies.
    """
    size = int(min(wanted_gb * GB, processes.mem_available() * _TOUCHED_SHARE))
    with mmap.mmap(-1, size) as memory, ThreadPoolExecutor(cores()) as pool:
        memory.madvise(mmap.MADV_HUGEPAGE)
        pieces = np.array_split(np.frombuffer(memory, np.uint8), cores())
        for done in [pool.submit(piece.fill, 1) for piece in pieces]:
            done.result()
        del pieces


def folder() -> Path:
    """Where files of benchmarks go: the disk of temporary files (TMPDIR)."""
    return Path(tempfile.gettempdir())
