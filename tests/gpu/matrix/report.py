"""The page docs/gpu-matrix.md out of the lines of trials.

GPUCKPT_MATRIX_LINES=lines.jsonl python -m pytest tests/gpu/matrix
python -m tests.gpu.matrix.report lines.jsonl > docs/gpu-matrix.md
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tests.gpu.matrix.lines import Line, read
from tests.gpu.matrix.rows import ROWS

VERBS = ("save", "suspend", "resume", "park")
MARKS = {
    "works": "works",
    "refused": "refused, runs on",
    "fails": "**fails**",
    "not run": "not run",
}

INTRODUCTION = """\
# What was tried on a GPU

Each row was run on a real GPU by `tests/gpu/matrix`, through a Jupyter server: a fresh kernel with a random value in CPU memory, one in a
file that it has open and one on the GPU, where a computation over all of that memory checks it. The kernel is saved and goes on; then it
is suspended and resumed twice, the second time from what the first resume made. After each of these the three values, and what the
row's own code computes next, must be the same as in a twin process that was never stopped.

*Refused* means: the save and the suspend say why it cannot be done, and the kernel computes on, on CPU and GPU.

Seconds are what a user waits, the longest of the row, with several rows at work at the same time on one machine: read them as
an order of magnitude. *On the GPU* is what a suspend takes off it, the CUDA context included.

*Handed over* is how much of it [stays on the GPU during a save](gpu.md); the driver copies the rest.
"""

HOW = """\
The page is made by

```
GPUCKPT_MATRIX_LINES=lines.jsonl python -m pytest tests/gpu/matrix -n 4
python -m tests.gpu.matrix.report lines.jsonl > docs/gpu-matrix.md
```
"""


def page(lines: Iterable[Line]) -> str:
    """Return the page as Markdown: each row's latest trial, in the order of `rows.ROWS`; one that was not run gives way to one that was."""
    latest = dict[str, Line]()
    for line in sorted(lines, key=lambda line: (line.outcome != "not run", line.time)):
        latest[line.row] = line
    shown = [latest[row.name] for row in ROWS if row.name in latest]
    table = [
        ("Workload", "GPUs", "Result", *VERBS, "On the GPU", "Handed over"),
        ("---", "---", "---", *("---:" for _ in VERBS), "---:", "---:"),
        *map(_cells, shown),
    ]
    reasons = [f"- {line.title}: {line.reason}" for line in shown if line.reason]
    parts = [INTRODUCTION, _machine(shown), "\n".join(f"| {' | '.join(row)} |" for row in table)]
    if reasons:
        parts.append("In the words of the errors:\n\n" + "\n".join(reasons))
    return "\n".join([*(part.rstrip() + "\n" for part in parts), HOW]).rstrip() + "\n"


def _cells(line: Line) -> tuple[str, ...]:
    spent = (f"{max(line.seconds[verb]):.1f} s" if line.seconds.get(verb) else "" for verb in VERBS)
    held, handed = (
        f"{count / 1e9:.1f} GB" if line.gpu_bytes else ""
        for count in (line.gpu_bytes, line.ferry_bytes)
    )
    return (line.title, str(line.gpus), MARKS[line.outcome], *spent, held, handed)


def _machine(lines: list[Line]) -> str:
    """Return what the rows ran on: one value each, or several where they differ."""
    found: dict[str, list[str]] = {}
    for line in lines:
        if line.outcome == "not run":
            continue
        for name, text in line.machine.items():
            if text not in found.setdefault(name, []):
                found[name].append(text)
    days = sorted({time.strftime("%Y-%m-%d", time.gmtime(line.time)) for line in lines})
    told = [f"{name} {' and '.join(texts)}" for name, texts in found.items()]
    return f"Run on {' and '.join(days)}: {', '.join(told)}.\n"


if __name__ == "__main__":
    sys.stdout.write(page([line for path in sys.argv[1:] for line in read(Path(path))]))
