"""Resume from a warm page cache to the first reply, by 1 to 16 threads, beside stock `criu restore` of the same kernel.

Ours decompresses and verifies, from two threads on by processes of one thread each, and once more by threads of one process; CRIU
reads its own images, as it wrote them. Once with memory that is stored as it is, once with memory that is stored by zstd.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.progress import Stage

from . import stock_criu
from .engine_kernel import engine_kernel, holding, scratch
from .machine import cores, thread_counts, wide
from .measured import Row, ratios
from .room import GB, scaled

ROUNDS = 3
#: Filling pages, against `criu restore`; with fewer cores it is never slower.
BUDGET_RATIO, NARROW_BUDGET_RATIO = 8.0, 1.0
BUDGET_GB_PER_SECOND = 10.0
KINDS = {"raw": ("random",), "zstd": ("text", "zeros", "float32")}


def run() -> Iterator[Row]:
    """Every number of threads, and CRIU's, in turn, for each kind."""
    size = scaled(1.0, max_gb=8, memory=1.6, disk=2.5)
    for kind in KINDS:
        yield from _measure(kind, size)


def _measure(kind: str, size: float) -> Iterator[Row]:
    counts = thread_counts()
    reply, pages = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    alone = defaultdict[int, list[float]](list)
    stages = defaultdict[str, list[float]](list)
    stock_reply, stock = [], []
    with (
        scratch() as directory,
        engine_kernel(directory, holding(size, *KINDS[kind])) as kernel,
        LocalStore(directory / "store") as store,
    ):
        manifest = kernel.save(store)
        images = directory / "images"
        stock_criu.dump(kernel.tree.init_pid, kernel.tree.keeper_nspid, images)
        filled = sum(s.length for s in manifest.streams if s.name.startswith("pages/")) / GB
        for _ in range(ROUNDS):
            kernel.kill()
            first, restored = stock_criu.restore(kernel, manifest, store, images)
            stock_reply.append(first)
            stock.append(restored)
            for threads in counts:
                kernel.kill()
                seconds, progress = kernel.resume(manifest, store, threads)
                reply[threads].append(seconds)
                pages[threads].append(progress.seconds_by_stage[Stage.PAGES])
                if threads > 1:
                    kernel.kill()
                    _, lonely = kernel.resume(manifest, store, threads, one_process=True)
                    alone[threads].append(lonely.seconds_by_stage[Stage.PAGES])
                if threads == counts[-1]:
                    for stage, spent in progress.seconds_by_stage.items():
                        stages[stage].append(spent)
    yield Row(f"{kind}, {size:g} GB: stock criu restore to the first reply", stock_reply)
    yield Row("    criu restore itself", stock)
    chart = f"filling pages, {kind}"
    yield Row(
        "    pages of it",
        [filled / seconds for seconds in stock],
        "GB/s",
        chart=chart,
        series="criu restore",
        x=1,
        x_unit="threads",
    )
    for threads in counts:
        most = threads == min(cores(), 16)
        yield Row(f"{kind}: resume with {threads} threads to the first reply", reply[threads])
        yield Row("    stock takes so many times that", ratios(stock_reply, reply[threads]), "x")
        yield Row(
            "    filling pages alone",
            [filled / seconds for seconds in pages[threads]],
            "GB/s",
            wide(BUDGET_GB_PER_SECOND) if most and kind == "zstd" else None,
            at_least=True,
            chart=chart,
            series="resume",
            x=threads,
            x_unit="threads",
        )
        if threads > 1:
            yield Row(
                "    by threads of one process",
                [filled / seconds for seconds in alone[threads]],
                "GB/s",
                chart=chart,
                series="resume by one process",
                x=threads,
                x_unit="threads",
            )
            yield Row(
                "    which take so many times that", ratios(alone[threads], pages[threads]), "x"
            )
        yield Row(
            "    criu restore takes so many times that",
            ratios(stock, pages[threads]),
            "x",
            (wide(BUDGET_RATIO) or NARROW_BUDGET_RATIO) if most and kind == "raw" else None,
            at_least=True,
        )
    for stage, samples in stages.items():
        yield Row(f"    {stage}", samples)
