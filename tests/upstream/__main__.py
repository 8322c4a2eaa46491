"""`make upstream`: runs the suites in both variants and prints a table; the exit status says whether all is as it should be."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from .running import Outcome, run
from .suites import DEVIATIONS, SUITES, Variant, suite_named

_WIDTHS = {
    "suite": 28,
    "variant": 7,
    "passed": 6,
    "skipped": 7,
    "failed": 6,
    "again": 5,
    "deselected": 10,
    "launches": 8,
    "kernels": 7,
    "plain": 5,
    "other": 5,
    "daemons left": 12,
}


def main(arguments: list[str]) -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.upstream")
    parser.add_argument("--suite", action="append", choices=[s.distribution for s in SUITES])
    parser.add_argument("--variant", action="append", type=Variant, choices=list(Variant))
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    wanted = parser.parse_args(arguments)
    outcomes = []
    for variant in wanted.variant or Variant:
        for suite in map(suite_named, wanted.suite or [s.distribution for s in SUITES]):
            if variant not in suite.variants:
                continue
            print(f"\n== {suite.distribution} {suite.version}, variant {variant}", flush=True)
            outcomes.append(run(suite, variant, wanted.pytest))
    print()
    for line in table(outcomes):
        print(line)
    return 0 if all(outcome.good for outcome in outcomes) else 1


def table(outcomes: list[Outcome]) -> Iterator[str]:
    """Yield a line for each run, and under it what was different in it."""
    yield "  ".join(name.rjust(width) for name, width in _WIDTHS.items())
    for outcome in outcomes:
        suite, tests, launches = outcome.suite, outcome.tests, outcome.launches
        cells = (
            *(f"{suite.distribution} {suite.version}", outcome.variant),
            *(tests["passed"], tests["skipped"], tests["failed"]),
            *(len(outcome.again), tests["deselected"]),
            *(launches["engine"], outcome.kernels, launches["plain"], launches["other"]),
            outcome.daemons_left,
        )
        yield "  ".join(
            str(cell).rjust(width) for cell, width in zip(cells, _WIDTHS.values(), strict=True)
        ) + ("" if outcome.good else f"  WRONG (pytest ended with {outcome.status})")
    yield "launches: under the engine; kernels: those that the daemon knew; both must be more than none"
    for outcome in outcomes:
        for name in outcome.again:
            yield f"{outcome.suite.distribution} {outcome.variant}: failed at first: {name}"
        for deviation in DEVIATIONS:
            if count := outcome.changed.get(deviation.change, 0):
                yield (
                    f"{outcome.suite.distribution} {outcome.variant}: {count} tests of {deviation.module} "
                    f"{deviation.change}: {deviation.why}"
                )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
