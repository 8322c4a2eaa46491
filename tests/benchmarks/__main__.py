"""Runs the benchmarks that are named, or all of them; the exit status says whether every budget was kept.

`all` and `plot` are names as well; the latter draws what the JSON files say, when the others are done. `--to FOLDER`: where
these are, instead of docs/bench.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

from . import machine, reports
from .reports import Report
from .room import Skipped

#: Name to module. Each has `run`, which yields rows, and the first line of its docstring is its title. They are imported when
#: they run: not every machine has what each of them needs.
BENCHMARKS = {
    "small-kernel": "small_kernel",
    "ordinary-user": "ordinary_user",
    "freeze": "freeze",
    "audit": "audit",
    "save": "save",
    "periodic-saves": "periodic_saves",
    "at-rest": "at_rest",
    "memory-reading": "memory_reading",
    "warm-resume": "warm_resume",
    "warm-kernels": "warm_kernels",
    "cold-resume": "cold_resume",
    "deduplication": "deduplication",
    "small-changes": "small_changes",
    "data": "data",
    "event-loop": "event_loop",
    "page": "page",
    "store": "store",
    "remote": "remote",
    "others": "others",
    "gpu-driver": "gpu_driver",
    "gpu-kernel": "gpu_kernel",
    "gpu-ferry": "gpu_ferry",
}


def main(arguments: list[str]) -> int:
    """Print a row per quantity, and write a JSON file per benchmark."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=", ".join([*BENCHMARKS, "all", "plot"])
    )
    parser.add_argument("--to", type=Path, default=reports.FOLDER, metavar="FOLDER")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - {*BENCHMARKS, "all", "plot"}:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    everything = not options.names or "all" in options.names
    names = list(BENCHMARKS) if everything else [name for name in options.names if name != "plot"]
    here = machine.here()
    print(here, flush=True)
    kept = [_run(name, here, options.to) for name in names]
    if "plot" in options.names:
        plots = import_module(".plots", __package__)
        for path in plots.draw_all(options.to):
            print(path)
    return 0 if all(kept) else 1


def _run(name: str, here: machine.Machine, folder: Path) -> bool:
    """Whether it could be done and every budget was kept. One that cannot run here is skipped, with the reason."""
    module = import_module(f".{BENCHMARKS[name]}", __package__)
    title = (module.__doc__ or name).partition("\n")[0]
    print(f"\n== {name}: {title}", flush=True)
    date, began, load, rows = reports.now(), time.monotonic(), round(os.getloadavg()[0], 2), []
    try:
        for row in module.run():
            print(row, flush=True)
            rows.append(row)
    except Skipped as reason:
        print(f"skipped: {reason}", flush=True)
        return True
    except Exception:
        traceback.print_exc()
        return False
    command = f"python -m tests.benchmarks {name}"
    seconds = round(time.monotonic() - began, 1)
    print(f"{seconds} s in all; {load} others wanted a processor before", flush=True)
    reports.write(Report(name, title, command, date, seconds, load, here, rows), folder)
    return all(row.within for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
