"""What the audit adds to the time for which a kernel stands still in a save, for each of its threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from jupyter_gpuckpt.engine.audit.fact_records import Facts
from jupyter_gpuckpt.engine.audit.reading import Audit
from jupyter_gpuckpt.engine.injection.threads_held import ThreadsHeld
from jupyter_gpuckpt.engine.tree.standstill import Standstill
from jupyter_gpuckpt.engine.tree.tree import Tree

from .engine_kernel import engine_kernel, scratch
from .measured import Row

THREADS = [15, 500]
ROUNDS = 15
#: Milliseconds for a kernel with few threads, and for each thread.
BUDGET_MS, BUDGET_MS_A_THREAD = 5.0, 0.1


class _Timed(Audit):
    """An audit that counts the milliseconds of its parts."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree)
        self.asking = self.terminals = self.reading = 0.0

    def ask(self, held: ThreadsHeld) -> None:
        began = time.perf_counter()
        super().ask(held)
        self.asking += 1e3 * (time.perf_counter() - began)

    def begin(self, descriptors: Mapping[int, Sequence[int]]) -> None:
        began = time.perf_counter()
        super().begin(descriptors)
        self.terminals += 1e3 * (time.perf_counter() - began)

    def read(self) -> Callable[[], Facts]:
        began = time.perf_counter()
        found = super().read()
        self.reading += 1e3 * (time.perf_counter() - began)
        return found


def run() -> Iterator[Row]:
    """For few and many threads, standstills with and without an audit in turn."""
    for threads in THREADS:
        yield from _measure(threads)


def _measure(threads: int) -> Iterator[Row]:
    code = f"""
import threading
for _ in range({threads} - threading.active_count()):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
    plain, parts = list[float](), dict[str, list[float]]()
    with scratch() as directory, engine_kernel(directory, code) as kernel:
        for _ in range(ROUNDS):
            began = time.perf_counter()
            without = Standstill(kernel.tree)
            without.begin()
            plain.append(1e3 * (time.perf_counter() - began))
            without.end()
            audit = _Timed(kernel.tree)
            standstill = Standstill(kernel.tree, audit)
            standstill.begin()
            audit.read()
            standstill.end()
            for part, spent in vars(audit).items():
                if isinstance(spent, float):
                    parts.setdefault(part, []).append(spent)
    whole = [sum(spent) for spent in zip(*parts.values(), strict=True)]
    budget = BUDGET_MS + BUDGET_MS_A_THREAD * threads
    yield Row(f"audit of {threads} threads", whole, "ms", budget)
    yield Row("  for each thread", [spent / threads for spent in whole], "ms")
    for part, samples in parts.items():
        yield Row(f"  {part}", samples, "ms")
    yield Row("  the standstill itself", plain, "ms")
