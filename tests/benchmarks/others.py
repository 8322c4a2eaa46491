"""dill, Kishu and elastic-kernel on notebooks that they can hold and on ones that they cannot: time, bytes, and what was lost.

What was lost is found by running the rest of the notebook after the restore and comparing every answer with that of a kernel
that was never saved. A row's time is that of the save, until it is on the disk (Kishu saves after every cell: how much longer
the cells took); `back` is the time from no process to a kernel that answers; `cells` is how much longer the notebook's cells
took than in a stock kernel.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from jupyter_gpuckpt.errors import GpuCkptError

from .engine_kernel import scratch, settings
from .environment import daemon
from .measured import Row
from .other_notebooks import NOTEBOOKS, Notebook
from .other_tools import Dill, Elastic, Failed, Kishu, Ours, Plain, Session, version_of

#: Times are shown of the notebook with much data; of the others it matters what is lost.
TIMED, ROUNDS = "tables", 2
CHART, ANSWERS_CHART = "notebook 'tables'", "right answers after a restore"
OURS = "jupyter-gpuckpt"
_EVERYTHING = "everything"


def run() -> Iterator[Row]:
    """Every tool in turn, for each notebook."""
    settings(Path())  # where the engine cannot run there is nothing to compare with
    with daemon() as client:
        tools: list[Callable[[Path], Session]] = [
            lambda folder: Ours(folder, client),
            Dill,
            Kishu,
            Elastic,
        ]
        names = [OURS, "dill", "kishu", "elastic-kernel"]
        for notebook in NOTEBOOKS:
            if any(find_spec(module) is None for module in notebook.needs):
                continue
            rounds = ROUNDS if notebook.name == TIMED else 1
            right, stock = _reference(notebook)
            # The first of several may have loaded what the others find in memory.
            stock = min([stock, *(_reference(notebook)[1] for _ in range(rounds - 1))])
            results: dict[str, list[_Result]] = {name: [] for name in names}
            for _ in range(rounds):
                for name, tool in zip(names, tools, strict=True):
                    results[name].append(_measure(tool, notebook, right, stock))
            for name, found in results.items():
                yield from _rows(notebook, name, found)


class _Result:
    """What became of one notebook under one tool. `back` and `cells` are NaN where it did not come to that."""

    def __init__(self) -> None:
        self.cells = self.back = float("nan")
        #: Seconds until it was saved, or refused.
        self.save = 0.0
        self.saved = False
        self.stored = 0
        self.lost = [_EVERYTHING]
        self.right = 0
        self.error = ""


def _reference(notebook: Notebook) -> tuple[dict[str, str], float]:
    """Return the right answers, and how long the cells take."""
    with scratch() as folder:
        session = Plain(folder)
        try:
            session.start()
            seconds = _timed(lambda: _run_cells(session, notebook))
            # An error here would be the right answer of every tool that has lost everything.
            return {what: session.answer(code) for what, code in notebook.rest.items()}, seconds
        finally:
            session.end()


def _measure(
    tool: Callable[[Path], Session], notebook: Notebook, right: dict[str, str], stock: float
) -> _Result:
    result = _Result()
    session: Session | None = None
    with scratch() as folder:
        try:
            session = tool(folder)
            session.start()
            result.cells = _timed(lambda: _run_cells(session, notebook)) - stock
            began = time.monotonic()
            try:
                result.stored = session.save()
                result.saved = True
            finally:
                result.save = time.monotonic() - began
            if session.saves_after_cells:
                result.save += max(0.0, result.cells)
            session.leave()
            _ask_again(session, notebook, right, result)
        except (Failed, GpuCkptError) as error:
            result.error = str(error)
        finally:
            if session is not None:
                session.end()
    return result


def _ask_again(
    session: Session, notebook: Notebook, right: dict[str, str], result: _Result
) -> None:
    """Restore, and compare the variables even after an error, because some may have been restored."""
    try:
        result.back = _timed(session.come_back)
    except Failed as error:
        result.error = str(error)
    answers = {what: session.ask(code) for what, code in notebook.rest.items()}
    result.lost = [what for what, answer in answers.items() if answer != right[what]]
    result.right = len(right) - len(result.lost)
    if not result.right:
        result.lost = [_EVERYTHING]


def _run_cells(session: Session, notebook: Notebook) -> None:
    for cell in notebook.cells:
        session.run(cell)


def _timed(work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _rows(notebook: Notebook, name: str, found: list[_Result]) -> Iterator[Row]:
    last = found[-1]
    version = "" if name == OURS else version_of(name)
    label = f"{notebook.name}: {name} {version}".strip()
    lost = ", ".join(last.lost) or "nothing"
    if last.error:
        lost += f" ({last.error})"
    yield Row(
        f"{label}: right answers",
        [100 * result.right / len(notebook.rest) for result in found],
        "%",
        100.0 if name == OURS else None,
        at_least=True,
        facts={"lost": lost},
        chart=ANSWERS_CHART,
        series=name,
        x=notebook.name,
    )
    seconds = [result.save for result in found]
    if not last.saved:
        yield Row(f"{label}: refused", seconds)
        return
    facts = {
        "back": f"{statistics.median(result.back for result in found):.2f} s",
        "cells": f"{statistics.median(result.cells for result in found):+.2f} s",
        "stored": f"{last.stored / 1e6:,.1f} MB",
    }
    drawn = {"chart": CHART, "series": "save", "x": name} if notebook.name == TIMED else {}
    yield Row(f"{label}: saved", seconds, facts=facts, **drawn)
    if notebook.name == TIMED:
        back = [result.back for result in found]
        yield Row(f"{label}: back", back, chart=CHART, series="back", x=name)
