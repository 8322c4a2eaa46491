"""The page docs/state-matrix.md out of the lines of trials: `make matrix`.

GPUCKPT_STATE_LINES=lines.jsonl python -m pytest tests/matrix -m "slow or not slow"
python -m tests.matrix.report lines.jsonl > docs/state-matrix.md
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tests.gpu.matrix.lines import machine
from tests.matrix.row import Row
from tests.matrix.rows import CHAPTERS, ROWS
from tests.matrix.trial import Line

INTRODUCTION = """\
# What kernels can hold

Each row was run by `tests/matrix` with a real kernel: a cell makes the state, and a second cell uses it and checks it. The second cell
runs before anything is done, after a save, and after each of two rounds of suspend and resume.

- *works*: the state was right after every step.
- *works, except that*: what the row names is not kept; all else was right.
- *refused*: the save and the suspend say why they cannot be done, and the kernel runs on with its state.

GPU memory has [a page of its own](gpu-matrix.md).
"""

HOW = """\
`make matrix` runs all rows and writes this page. `make test` runs the rows marked with °. To add a row, add a `Row` to a module in
`tests/matrix/rows`.
"""


def read(path: Path) -> list[Line]:
    """Return the lines of a file."""
    return [msgspec.json.decode(line, type=Line) for line in path.read_bytes().splitlines()]


def page(lines: Iterable[Line]) -> str:
    """Return the page as Markdown: each row's last trial, in the order of the rows."""
    last = {line.row: line for line in lines}
    counts = Counter(line.outcome for line in last.values())
    parts = [
        INTRODUCTION,
        f"Run on {time.strftime('%Y-%m-%d')} as {'root' if os.geteuid() == 0 else 'an ordinary user'}: "
        + ", ".join(f"{name} {text}" for name, text in machine().items())
        + f", {platform.machine()}. {len(last)} rows of {len(ROWS)}: "
        + ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
        + ".\n",
    ]
    for title, rows in CHAPTERS.items():
        table = [f"## {title}\n", "| State | Result |", "| --- | --- |"]
        table += [
            f"| {row.title}{' °' if row.quick else ''} | {_result(row, last[row.name])} |"
            for row in rows
            if row.name in last
        ]
        parts.append("\n".join(table) + "\n")
    return "\n".join([*parts, HOW])


def _result(row: Row, line: Line) -> str:
    reason = " ".join(line.reason.split()).replace("|", "\\|")
    if line.outcome == "works":
        return f"works, except that {row.exception}" if row.exception else "works"
    if line.outcome == "refused":
        return f"refused: {reason}"
    if line.outcome == "not run":
        return f"not run: {reason}"
    return f"**{line.outcome}**: {reason[:300]}"


if __name__ == "__main__":
    sys.stdout.write(page([line for path in sys.argv[1:] for line in read(Path(path))]))
