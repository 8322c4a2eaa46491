"""A kernel with numpy and pandas imported: suspend, and resume to the first reply."""

from __future__ import annotations

import time
from collections.abc import Iterator

from jupyter_gpuckpt.wire import calls

from .environment import daemon, kernel
from .measured import Row

ROUNDS = 10
BUDGET_SECONDS = 0.6


def run() -> Iterator[Row]:
    """Medians of ten suspends and resumes of one kernel."""
    suspends, resumes, stages = [], [], dict[str, list[float]]()
    with daemon() as client, kernel("import numpy, pandas; x = 1") as (kernel_id, channel):
        for _ in range(ROUNDS):
            began = time.monotonic()
            result = client.wait(client.send(calls.suspend(kernel_id)).operation_id)
            suspends.append(time.monotonic() - began)
            _collect(stages, "suspend", result.seconds_by_stage)
            began = time.monotonic()
            result = client.wait(client.send(calls.resume(kernel_id)).operation_id)
            message = channel.execute("x += 1")
            while channel.get_shell_msg(timeout=60)["parent_header"].get("msg_id") != message:
                pass
            resumes.append(time.monotonic() - began)
            _collect(stages, "resume", result.seconds_by_stage)
    yield Row("small kernel: suspend", suspends, budget=BUDGET_SECONDS)
    yield Row("small kernel: resume to first reply", resumes, budget=BUDGET_SECONDS)
    for name, samples in stages.items():
        yield Row(f"  {name}", samples)


def _collect(stages: dict[str, list[float]], verb: str, seconds: dict[str, float]) -> None:
    for stage, spent in seconds.items():
        stages.setdefault(f"{verb}: {stage}", []).append(spent)
