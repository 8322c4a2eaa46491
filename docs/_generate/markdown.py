"""Pieces of Markdown that all generated parts use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, align: str = "") -> str:
    """Return a table. `align`: a letter per column, r for numbers; others are left-aligned."""
    rules = ["---:" if mark == "r" else "---" for mark in align.ljust(len(header), "l")]
    lines = [header, rules, *([_cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    """Return text set as code."""
    return f"`{text}`"


def sentence(text: str) -> str:
    """Return a help text as one line that begins with a capital letter and ends with a period."""
    joined = " ".join(text.split())
    if joined and not joined.endswith((".", "?", "!", ":")):
        joined += "."
    return joined[:1].upper() + joined[1:]


def escaped(text: str) -> str:
    """Return text with all characters escaped that are markup in Markdown, outside of `code`."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<>\[\]$])", r"\\\1", part) for part in parts
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
