"""How long a kernel stands still in a save while it rewrites 2 GB, beside `criu dump --leave-running` of the same kernel."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from jupyter_gpuckpt.host import commands, doctor, processes

from .environment import daemon, kernel
from .measured import Row

ROUNDS = 5
MEMORY_GB = 2
#: 0.15 s + 0.06 s per GB of private memory.
BUDGET_SECONDS = 0.15 + 0.06 * MEMORY_GB

REWRITER = f"""
import threading, numpy as np
memory = np.random.default_rng(1).integers(0, 1 << 62, {MEMORY_GB} << 27, dtype=np.int64)
def rewrite():
    while True:
        for start in range(0, len(memory), 1 << 17):
            memory[start : start + (1 << 17)] += 1
threading.Thread(target=rewrite, daemon=True).start()
"""


def run() -> Iterator[Row]:
    """Saves of ours and dumps of CRIU in turn."""
    frozen, whole, dumps = [], [], []
    stages = dict[str, list[float]]()
    with daemon() as client, kernel(REWRITER) as (kernel_id, _):
        record = client.kernel(kernel_id)
        for _ in range(ROUNDS):
            result = client.wait(client.save(kernel_id).operation_id)
            frozen.append(result.frozen_seconds)
            whole.append(result.seconds)
            for stage, spent in result.seconds_by_stage.items():
                stages.setdefault(stage, []).append(spent)
            client.delete_snapshot(result.snapshot_id)
            dumps.append(_criu_dump(record.init_pid, record.pid))
    ratio = [dump / ours for dump, ours in zip(dumps, frozen, strict=True)]
    yield Row(
        f"save of {MEMORY_GB} GB being rewritten: stands still", frozen, budget=BUDGET_SECONDS
    )
    for stage, samples in stages.items():
        yield Row(f"    {stage}", samples)
    yield Row("  the whole save", whole)
    yield Row("  criu dump --leave-running to files: stands still", dumps)
    yield Row("  ratio", ratio, unit="x")


def _criu_dump(init_pid: int, kernel_pid: int) -> float:
    """Seconds for which CRIU's own dump, to files on the same disk, stops the tree."""
    criu = doctor.find_criu()
    assert criu is not None
    keeper = processes.parent(kernel_pid) or 0
    directory = Path(tempfile.mkdtemp(prefix="gpuckpt-bench-criu-"))
    began = time.monotonic()
    try:
        commands.run(
            [
                *("nsenter", f"--target={init_pid}", "--pid", "--mount", "--"),
                *(criu, "dump", "--tree", str(processes.nspid(keeper)), "--leave-running"),
                *("--images-dir", directory, "-v1", "--tcp-close", "--file-locks", "--link-remap"),
                *("--manage-cgroups=ignore", "--ghost-limit", "256M"),
            ],
            timeout=120,
        )
        return time.monotonic() - began
    finally:
        shutil.rmtree(directory)
