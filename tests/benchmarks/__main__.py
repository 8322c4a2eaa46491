"""Runs the benchmarks that are named, or all of them; the exit status says whether every budget was kept."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from . import event_loop, freeze, small_kernel
from .measured import Row

BENCHMARKS: dict[str, Callable[[], Iterator[Row]]] = {
    "small-kernel": small_kernel.run,
    "freeze": freeze.run,
    "event-loop": event_loop.run,
}

#: Budgets that have no benchmark yet; each gets a module of its own beside these.
LATER = [
    "reading memory against criu dump --stream",
    "save to disk against writing the same bytes",
    "page filling and a warm resume against stock criu restore",
    "a second save",
    "GPU Checkpoint and Restore against the plain driver calls",
]


def main(names: list[str]) -> int:
    """Print a row per quantity."""
    within = True
    for name in names or BENCHMARKS:
        for row in BENCHMARKS[name]():
            print(row, flush=True)
            within &= row.budget is None or row.median <= row.budget
    if not names:
        print("Not measured yet: " + "; ".join(LATER) + ".")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
