"""A real kernel with GPU memory: a first save, a second one with nothing changed, suspend, and resume to the first right answer."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.progress import Stage
from jupyter_gpuckpt.wire.protocol import Operation, Result

from .environment import daemon, kernel
from .gpu_memory import FILL, require_right_answer, sizes
from .measured import Row
from .room import GB

SIZES_GB = [1.0, 3.0, 8.0, 24.0]
#: Of suspend and resume; a first save there is only once.
ROUNDS = 2
#: Of 3 GB and nothing changed.
SECOND_GB, BUDGET_NEW_PERCENT, BUDGET_TIMES = 3.0, 1.0, 3.0
#: Of 24 GB: what CRIU takes of a save and of a resume, in seconds.
LARGE_GB, BUDGET_DUMP, BUDGET_RESTORE = 24.0, 0.6, 0.3


def run() -> Iterator[Row]:
    """Each size in a kernel of its own."""
    for size in sizes(SIZES_GB, memory=1.6, disk=1.2):
        yield from _measure(size, f"size = {int(size * GB)}\n{FILL}\nexpected = total()")


def _measure(size: float, setup: str) -> Iterator[Row]:
    results = defaultdict[str, list[Result]](list)
    replies = list[float]()
    with daemon() as client, kernel(setup) as (kernel_id, channel):
        for name in ("first save", "second save, nothing changed"):
            results[name].append(_done(client, client.send(calls.save(kernel_id))))
        for _ in range(ROUNDS):
            results["suspend"].append(_done(client, client.send(calls.suspend(kernel_id))))
            began = time.monotonic()
            results["resume"].append(_done(client, client.send(calls.resume(kernel_id))))
            require_right_answer(channel)
            replies.append(time.monotonic() - began)
    for name, found in results.items():
        yield from _rows(size, name, found)
    yield from _second(size, results["first save"], results["second save, nothing changed"])
    large = size >= LARGE_GB
    dumps = [result.seconds_by_stage[Stage.FREEZE] for result in results["suspend"]]
    yield Row("    CRIU's part of a suspend", dumps, budget=BUDGET_DUMP if large else None)
    restores = [
        result.seconds_by_stage[Stage.RESTORE] - result.seconds_by_stage.get(Stage.PAGES, 0.0)
        for result in results["resume"]
    ]
    yield Row("    CRIU's part of a resume", restores, budget=BUDGET_RESTORE if large else None)
    yield Row(
        f"resume of {size:g} GB to the first right answer",
        replies,
        chart="operations",
        series="resume to the first answer",
        x=size,
        x_unit="GB",
    )


def _done(client: Client, operation: Operation) -> Result:
    return client.wait(operation.operation_id)


def _rows(size: float, name: str, found: list[Result]) -> Iterator[Row]:
    facts = {}
    if "save" in name:
        new = found[-1].sizes.new_bytes
        facts = {"new": f"{new / 1e6:,.0f} MB", "still": f"{found[-1].frozen_seconds:.3f} s"}
    seconds = [result.seconds for result in found]
    yield Row(
        f"{size:g} GB on the GPU: {name}",
        seconds,
        facts=facts,
        chart="operations",
        series=name,
        x=size,
        x_unit="GB",
    )
    for stage in found[-1].seconds_by_stage:
        yield Row(
            f"    {stage}",
            [result.seconds_by_stage.get(stage, 0.0) for result in found],
            chart=f"{name}: stages",
            series=stage,
            x=size,
            x_unit="GB",
        )


def _second(size: float, first: list[Result], second: list[Result]) -> Iterator[Row]:
    bound = size == SECOND_GB
    share = 100 * second[0].sizes.new_bytes / first[0].sizes.new_bytes
    yield Row(
        "    the second save's new bytes, of the first's",
        [share],
        "%",
        BUDGET_NEW_PERCENT if bound else None,
    )
    yield Row(
        "    the first save takes so many times the second",
        [first[0].seconds / second[0].seconds],
        "x",
        BUDGET_TIMES if bound else None,
        at_least=True,
    )
