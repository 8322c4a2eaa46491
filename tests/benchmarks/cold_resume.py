"""Resume when nothing of the snapshot is in memory, beside `dd` reading the same stored bytes, and beside a warm resume.

The slower of these two is what a resume cannot do without, however many processors there are.
"""

from __future__ import annotations

import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from jupyter_gpuckpt.store.local import LocalStore

from .cold_cache import evict
from .engine_kernel import engine_kernel, holding, scratch
from .machine import wide
from .measured import Row, ratios
from .room import scaled
from .save import MIXTURE

ROUNDS = 3
#: On 16 cores; decompressing takes longer than the disk where there are few.
BUDGET_RATIO = 1.3
CHART = "cold, from the disk"


def run() -> Iterator[Row]:
    """`dd`, a resume after which all is in memory, and one from there, in turn; the first two with nothing in memory."""
    size = scaled(1.0, max_gb=8, memory=1.6, disk=2.5)
    reading, reply, warm = list[float](), list[float](), list[float]()
    stages = defaultdict[str, list[float]](list)
    with (
        scratch() as directory,
        engine_kernel(directory, holding(size, *MIXTURE)) as kernel,
        LocalStore(directory / "store") as store,
    ):
        manifest = kernel.save(store)
        packs = sorted((store.root / "packs").glob("*.pack"))
        stored = sum(pack.stat().st_size for pack in packs)
        for _ in range(ROUNDS):
            kernel.kill()
            evict(packs)
            reading.append(_read(packs))
            evict(packs)
            seconds, progress = kernel.resume(manifest, store)
            reply.append(seconds)
            for stage, spent in progress.seconds_by_stage.items():
                stages[stage].append(spent)
            kernel.kill()
            warm.append(kernel.resume(manifest, store)[0])
    facts = {"stored": f"{stored / 1e6:,.0f} MB"}
    yield Row(
        f"dd reads what {size:g} GB are stored as",
        reading,
        facts=facts,
        chart=CHART,
        series=f"{size:g} GB",
        x="dd of the packs",
    )
    yield Row(
        "resume to the first reply",
        reply,
        chart=CHART,
        series=f"{size:g} GB",
        x="resume",
    )
    for stage, samples in stages.items():
        yield Row(f"    {stage}", samples)
    yield Row("  resume takes so many times dd", ratios(reply, reading), "x", wide(BUDGET_RATIO))
    yield Row("warm resume", warm, chart=CHART, series=f"{size:g} GB", x="warm resume")
    slower = [max(both) for both in zip(reading, warm, strict=True)]
    yield Row("  cold resume takes so many times the slower of the two", ratios(reply, slower), "x")


def _read(packs: list[Path]) -> float:
    began = time.monotonic()
    for pack in packs:
        subprocess.run(
            ["dd", f"if={pack}", "of=/dev/null", "bs=4M", "status=none"],
            check=True,
        )
    return time.monotonic() - began
