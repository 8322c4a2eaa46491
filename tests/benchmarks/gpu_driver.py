"""Checkpoint and Restore of a process's GPU memory: the driver's calls as they are, beside ours, which stage it in a file.

Both take the same process off the GPU and bring it back, in turn; nothing is stored. The memory is random.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from jupyter_gpuckpt.engine.gpu.driver import cuda
from jupyter_gpuckpt.engine.gpu.driver.gpu_staging import FileStaging
from jupyter_gpuckpt.engine.tree.tree import Tree
from jupyter_gpuckpt.host import processes

from .engine_kernel import scratch
from .gpu_memory import FILL, sizes
from .measured import Row, ratios
from .room import GB, Skipped

SIZES_GB = [1.0, 8.0, 24.0]
ROUNDS = 3
LOCK_SECONDS = 30
#: Of 24 GB: ours is at least so many times as fast.
BUDGET_GB, BUDGET_CHECKPOINT, BUDGET_RESTORE = 24.0, 1.7, 1.2
PROGRAM = f"""
import sys
size = int(sys.argv[1])
{FILL}
print(total(), flush=True)
for line in sys.stdin:
    print(total(), flush=True)
"""


def run() -> Iterator[Row]:
    """Each size in a process of its own."""
    for size in sizes(SIZES_GB, memory=1.4, disk=0):
        with _tmpfs() as directory, _Program(int(size * GB)) as program:
            yield from _measure(size, program, directory)


class _Program:
    """A process with that much on the GPU."""

    def __init__(self, size: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        self.pid = self._process.pid
        self.total = self._answer()
        start = processes.start_time(self.pid)
        assert start is not None
        self.tree = Tree(self.pid, start, 0, 0, self.pid, self.pid, "")
        return self

    def __exit__(self, *exc: object) -> None:
        with self._process:
            self._process.kill()

    def check(self) -> None:
        """Its memory is what it was."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert self._answer() == self.total

    def _answer(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@contextmanager
def _tmpfs() -> Iterator[Path]:
    """Mounted as the kernels' own is."""
    with scratch() as directory:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        options = f"huge=always,size={size},mode=0755"
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
        if subprocess.run(words, check=False).returncode:
            raise Skipped("mounting needs root")
        try:
            yield directory
        finally:
            subprocess.run(["umount", "-l", str(directory)], check=True)


def _measure(size: float, program: _Program, directory: Path) -> Iterator[Row]:
    taken, back = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for _ in range(ROUNDS):
        for way in ("driver", "ours"):
            checkpoint, restore = _round(program, directory if way == "ours" else None)
            taken[way].append(checkpoint)
            back[way].append(restore)
            program.check()
    bound = size >= BUDGET_GB
    for call, found, budget in (
        ("Checkpoint", taken, BUDGET_CHECKPOINT),
        ("Restore", back, BUDGET_RESTORE),
    ):
        for way, samples in found.items():
            name = f"{call} of {size:g} GB, {'staged in a file' if way == 'ours' else 'plain call'}"
            yield Row(name, samples, chart=call, series=way, x=size, x_unit="GB")
        yield Row(
            "    the plain call takes so many times ours",
            ratios(found["driver"], found["ours"]),
            "x",
            budget if bound else None,
            at_least=True,
        )


def _round(program: _Program, directory: Path | None) -> tuple[float, float]:
    """Seconds of Checkpoint and of Restore; in a file on `directory`, or as the driver does it."""
    pid = program.pid
    cuda.lock(pid, LOCK_SECONDS)
    tid = cuda.restore_thread(pid)
    assert tid is not None
    began = time.monotonic()
    if directory is None:
        cuda.checkpoint(pid)
    else:
        with FileStaging(program.tree, pid, tid, str(directory)) as staging:
            cuda.checkpoint(pid)
    between = time.monotonic()
    cuda.restore(pid)
    ended = time.monotonic()
    cuda.unlock(pid)
    if directory is not None:
        assert staging.files, "the driver's memory was not staged in a file"
        staging.discard()
    return between - began, ended - between
