"""How long a kernel that rewrites its memory stands still in a save, beside `criu dump --leave-running` of the same kernel.

Its memory holds one number everywhere, so that the rest of the save is short: what is in it does not matter for standing still.
"""

from __future__ import annotations

from collections.abc import Iterator

from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.wire import calls

from . import stock_criu
from .engine_kernel import scratch
from .environment import daemon, kernel
from .measured import Row, ratios
from .room import fitting

SIZES_GB = [0.1, 1.0, 4.0, 8.0]
ROUNDS = 5
#: Of larger ones: a dump of these takes long.
FEW_ROUNDS, MANY_GB = 3, 2.0
CHART = "a kernel stands still"


def run() -> Iterator[Row]:
    """For each size, saves of ours and dumps of CRIU in turn."""
    for size in fitting(SIZES_GB, memory=2.2, disk=1.5):
        yield from _measure(size)


def budget_seconds(gigabytes: float) -> float:
    """0.15 s + 0.06 s per GB of private memory."""
    return 0.15 + 0.06 * gigabytes


def _rewriter(gigabytes: float) -> str:
    return f"""
import threading, numpy as np
memory = np.full(int({gigabytes} * 1e9) // 8, 7)
def rewrite():
    while True:
        for start in range(0, len(memory), 1 << 17):
            memory[start : start + (1 << 17)] += 1
threading.Thread(target=rewrite, daemon=True).start()
"""


def _measure(size: float) -> Iterator[Row]:
    frozen, whole, dumps, still = [], [], [], []
    stages = dict[str, list[float]]()
    with daemon() as client, kernel(_rewriter(size)) as (kernel_id, _):
        record = client.send(calls.kernel(kernel_id))
        keeper = processes.nspid(processes.parent(record.pid) or 0)
        assert keeper is not None
        for _ in range(ROUNDS if size < MANY_GB else FEW_ROUNDS):
            result = client.wait(client.send(calls.save(kernel_id)).operation_id)
            frozen.append(result.frozen_seconds)
            whole.append(result.seconds)
            for stage, spent in result.seconds_by_stage.items():
                stages.setdefault(stage, []).append(spent)
            client.send(calls.delete_snapshot(result.snapshot_id))
            with scratch() as images:
                dumps.append(stock_criu.dump(record.init_pid, keeper, images))
                still.append(stock_criu.stood_still(images))
    yield Row(
        f"save of {size:g} GB being rewritten: stands still",
        frozen,
        budget=budget_seconds(size),
        chart=CHART,
        series="save",
        x=size,
        x_unit="GB",
    )
    for stage, samples in stages.items():
        yield Row(f"    {stage}", samples)
    yield Row("  the whole save", whole)
    yield Row(
        "  criu dump --leave-running to files: stands still",
        still,
        chart=CHART,
        series="criu dump -R",
        x=size,
        x_unit="GB",
    )
    yield Row("    all of it", dumps)
    yield Row("  criu dump stands still so many times as long", ratios(still, frozen), "x")
