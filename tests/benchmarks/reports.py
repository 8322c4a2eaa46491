"""What a benchmark found, as a JSON file that plots and pages are made from."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from .machine import Machine
from .measured import Row

FOLDER = Path(__file__).parent.parent.parent / "docs" / "bench"


class Report(msgspec.Struct, frozen=True):
    """One run of one benchmark.

    `date`: when it began, ISO 8601; `seconds`: how long all of it took; `load`: how many others wanted a processor before it
    began (the average of a minute, man uptime): numbers of a machine with other things to do say little.
    """

    name: str
    title: str
    command: str
    date: str
    seconds: float
    load: float
    machine: Machine
    rows: list[Row]


def write(report: Report, folder: Path) -> Path:
    """Replace the benchmark's file in `folder`, which is created; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report.name}.json"
    fresh = path.with_suffix(".tmp")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    os.replace(fresh, path)
    return path


def read(path: Path) -> Report:
    """Read a report that `write` wrote. Raises msgspec.ValidationError for anything else."""
    return msgspec.json.decode(path.read_bytes(), type=Report)


def now() -> str:
    """Return the current time in the format of reports."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
