"""The benchmarks: tables and pictures of the results of `make bench`."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from .markdown import code, table

DOCS = Path(__file__).parents[1]
#: The folders of results, each of one machine, with their headings.
MACHINES = {
    "bench": "On 2 cores",
    "bench/h200": "On 16 cores and an H200",
    "bench/h100": "On 16 cores and an H100",
}


def page() -> str:
    """Return a section for each machine, with every benchmark that ran there."""
    return "\n\n".join(_machine(folder, title) for folder, title in MACHINES.items())


def _machine(folder: str, title: str) -> str:
    results = [json.loads(path.read_text()) for path in sorted((DOCS / folder).glob("*.json"))]
    return "\n\n".join([f"## {title}", *(_benchmark(folder, result) for result in results)])


def _benchmark(folder: str, result: dict[str, Any]) -> str:
    machine = result["machine"]
    where = [f"{machine['cores']} cores ({machine['processor']})", f"{machine['memory_gb']} GB"]
    where += [*machine["gpus"], f"driver {machine['driver']}"] if machine["gpus"] else []
    where += [f"Linux {machine['linux']}", f"CRIU {machine['criu']}"]
    parts = [
        f"### {result['name']}",
        result["title"],
        f"{code(result['command'])} on {result['date'][:10]}: {', '.join(where)}; load at the start {result['load']}.",
        table(
            ["Measured", "Median", "Runs", "Also"],
            [_row(row) for row in result["rows"]],
            align="lrr",
        ),
    ]
    picture = f"{folder}/{result['name']}.svg"
    if (DOCS / picture).exists():
        parts.append(f"![{result['title']}]({picture})")
    return "\n\n".join(parts)


def _row(row: dict[str, Any]) -> tuple[str, str, str, str]:
    samples = row["samples"]
    median = _quantity(statistics.median(samples), row["unit"]) if samples else ""
    facts = ", ".join(f"{name} {value}" for name, value in row["facts"].items())
    name = row["name"].lstrip()
    # Parts of the row above are indented by spaces, which Markdown drops.
    indent = "&nbsp;" * (len(row["name"]) - len(name))
    return indent + name, median, str(len(samples)), facts


def _quantity(value: float, unit: str) -> str:
    if unit == "s" and abs(value) < 0.1:
        value, unit = 1000 * value, "ms"
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{number}&nbsp;{unit}" if unit else number
