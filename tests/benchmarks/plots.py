"""Draws reports: one picture per benchmark, one panel per chart of its rows."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import reports
from .measured import Row
from .reports import Report

_PANEL_INCHES = (5.4, 3.6)
_COLUMNS = 3
#: That a title has room for in a line above one panel.
_LETTERS = 75
#: So that the same report makes the same bytes.
_PLAIN = {"svg.hashsalt": "gpuckpt", "svg.fonttype": "none", "font.size": 9}


def draw_all(folder: Path) -> Iterator[Path]:
    """Draw a picture beside every report in `folder` that has charts; yield the paths."""
    for path in sorted(folder.glob("*.json")):
        report = reports.read(path)
        if any(row.chart for row in report.rows):
            yield draw(report, folder)


def draw(report: Report, folder: Path) -> Path:
    """Draw the picture of a report as NAME.svg in `folder`; return its path."""
    charts: dict[str, list[Row]] = {}
    for row in report.rows:
        if row.chart:
            charts.setdefault(row.chart, []).append(row)
    columns = min(len(charts), _COLUMNS)
    lines = -(-len(charts) // columns)
    path = folder / f"{report.name}.svg"
    with mpl.rc_context(_PLAIN):
        size = (_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * lines + 0.9)
        figure = Figure(figsize=size, layout="constrained")
        words = [report.title, f"{report.machine}, {report.date[:10]}"]
        lines_of_title = [textwrap.fill(text, _LETTERS * columns) for text in words]
        figure.suptitle("\n".join(lines_of_title), fontsize=9)
        panels = figure.subplots(lines, columns, squeeze=False).flatten()
        for panel, (title, rows) in zip(panels, charts.items(), strict=False):
            _draw_chart(panel, title, rows)
        for panel in panels[len(charts) :]:
            panel.set_visible(False)
        figure.savefig(path, metadata={"Date": None})
    return path


def _draw_chart(panel: Axes, title: str, rows: list[Row]) -> None:
    panel.set_title(title, fontsize=9)
    panel.set_ylabel(rows[0].unit)
    panel.set_xlabel(rows[0].x_unit)
    if all(isinstance(row.x, float | int) for row in rows):
        _draw_lines(panel, rows)
    else:
        _draw_bars(panel, rows)
    panel.set_ylim(bottom=0)
    panel.grid(axis="y", linewidth=0.3)
    panel.legend(fontsize=7)


def _draw_lines(panel: Axes, rows: list[Row]) -> None:
    """Draw a line per series, with bars from the least to the greatest measurement at each point."""
    for series, found in groupby(sorted(rows, key=lambda row: row.series), lambda row: row.series):
        points = sorted(found, key=lambda row: float(row.x))
        middle = [row.median for row in points]
        below = [row.median - min(row.samples) for row in points]
        above = [max(row.samples) - row.median for row in points]
        xs = [float(row.x) for row in points]
        panel.errorbar(xs, middle, [below, above], marker="o", capsize=2, label=series)
        bounds = {float(row.x): row.budget for row in points if row.budget is not None}
        if bounds:
            style = {"color": "black", "linewidth": 0.8, "marker": "_", "linestyle": "--"}
            panel.plot([*bounds], [*bounds.values()], label=f"budget of {series}", **style)
    ticks = sorted({float(row.x) for row in rows})
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])


def _draw_bars(panel: Axes, rows: list[Row]) -> None:
    """Draw a group of bars per x, a color per series."""
    places = list(dict.fromkeys(str(row.x) for row in rows))
    series = list(dict.fromkeys(row.series for row in rows))
    width = 0.8 / len(series)
    for number, name in enumerate(series):
        found = [row for row in rows if row.series == name]
        at = [places.index(str(row.x)) + (number - (len(series) - 1) / 2) * width for row in found]
        panel.bar(at, [row.median for row in found], width, label=name)
    panel.set_xticks(range(len(places)), places, rotation=20, ha="right", fontsize=7)
