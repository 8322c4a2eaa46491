"""A whole save to disk, beside `criu dump` with `tar | zstd -T0 -1`, and beside writing the same compressed bytes.

Every side ends with fsync on the same disk. The kernel's memory is a mixture: text, float32, much of it zeros, random.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.progress import Progress

from . import stock_criu
from .engine_kernel import EngineKernel, engine_kernel, holding, scratch
from .machine import wide
from .measured import Row, ratios
from .room import scaled

ROUNDS = 3
#: On 16 cores; compressing takes longer than the disk where there are few.
BUDGET_RATIO = 1.15
MIXTURE = ("text", "float32", "zeros", "random")
CHART = "a snapshot on the disk"
_PIECE = 4 << 20


def run() -> Iterator[Row]:
    """Ours, the bare write and theirs in turn; each save is the first of its store."""
    size = scaled(1.0, max_gb=8, memory=2.2, disk=4)
    seconds = defaultdict[str, list[float]](list)
    stored = archived = 0
    with scratch() as directory, engine_kernel(directory, holding(size, *MIXTURE)) as kernel:
        for _ in range(ROUNDS):
            with scratch() as place:
                packs = _ours(kernel, place / "store", seconds)
                stored = sum(len(pack) for pack in packs)
                seconds["bare"].append(_bare(packs, place / "copy"))
            with scratch() as place:
                archived = _theirs(kernel, place, seconds)
    yield Row(
        f"save of {size:g} GB",
        seconds["ours"],
        facts={"stored": f"{stored / 1e6:,.0f} MB"},
        chart=CHART,
        series=f"{size:g} GB",
        x="save",
    )
    for stage in [name for name in seconds if name.startswith("stage ")]:
        yield Row(f"    {stage}", seconds[stage])
    yield Row(
        "  criu dump, tar | zstd -T0 -1, fsync",
        seconds["theirs"],
        facts={"stored": f"{archived / 1e6:,.0f} MB"},
        chart=CHART,
        series=f"{size:g} GB",
        x="criu dump, tar | zstd",
    )
    yield Row("    of this criu dump", seconds["dump"])
    yield Row(
        "    theirs takes so many times ours", ratios(seconds["theirs"], seconds["ours"]), "x"
    )
    yield Row(
        "  writing the bytes of our packs, fsync",
        seconds["bare"],
        chart=CHART,
        series=f"{size:g} GB",
        x="bare write",
    )
    yield Row(
        "    save takes so many times that",
        ratios(seconds["ours"], seconds["bare"]),
        "x",
        wide(BUDGET_RATIO),
    )


def _ours(kernel: EngineKernel, root: Path, seconds: dict[str, list[float]]) -> list[bytes]:
    """Save into a new store; return the bytes of its packs."""
    os.sync()  # nobody writes for somebody else
    progress = Progress()
    began = time.monotonic()
    with LocalStore(root) as store:
        kernel.save(store, progress)
        seconds["ours"].append(time.monotonic() - began)
    for stage, spent in progress.seconds_by_stage.items():
        seconds[f"stage {stage}"].append(spent)
    return [pack.read_bytes() for pack in sorted((root / "packs").glob("*.pack"))]


def _bare(packs: list[bytes], path: Path) -> float:
    os.sync()
    began = time.monotonic()
    with path.open("wb", buffering=0) as file:
        for pack in packs:
            for start in range(0, len(pack), _PIECE):
                file.write(memoryview(pack)[start : start + _PIECE])
        os.fsync(file.fileno())
    return time.monotonic() - began


def _theirs(kernel: EngineKernel, place: Path, seconds: dict[str, list[float]]) -> int:
    """Make a dump and an archive of it; return the archive's bytes."""
    os.sync()
    images, archive = place / "images", place / "images.tar.zst"
    began = time.monotonic()
    stock_criu.dump(kernel.tree.init_pid, kernel.tree.keeper_nspid, images)
    seconds["dump"].append(time.monotonic() - began)
    tar = ["tar", "--create", "--directory", images, "."]
    with (
        archive.open("wb") as file,
        subprocess.Popen(tar, stdout=subprocess.PIPE) as packing,
        subprocess.Popen(_zstd(), stdin=packing.stdout, stdout=file) as pressing,
    ):
        assert pressing.wait() == packing.wait() == 0
        os.fsync(file.fileno())
    seconds["theirs"].append(time.monotonic() - began)
    return archive.stat().st_size


def _zstd() -> list[str]:
    """zstd -T0 -1; where the program is not installed, the same library with as many threads."""
    if shutil.which("zstd"):
        return ["zstd", "-T0", "-1", "--quiet"]
    code = (
        "zstandard.ZstdCompressor(1, threads=-1).copy_stream(sys.stdin.buffer, sys.stdout.buffer)"
    )
    return [sys.executable, "-c", f"import sys, zstandard; {code}"]
