"""Recipes: the cells of a notebook, or a script, that prepare a kernel.

A template keeps its recipe as a notebook without outputs. If the file that it was made from is still there, that one counts.
"""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path

import msgspec

from ..errors import ConfigurationError

#: nbformat's version of notebooks with a list of cells.
_NOTEBOOK_VERSION = 4
_LEFT_OUT = "skip-execution"


def read(path: Path) -> list[str]:
    """Return the cells of a recipe; a script is one cell. Raises ConfigurationError."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"The recipe {path} cannot be read: {error}") from error
    cells = _cells(text, path) if path.suffix == ".ipynb" else [text]
    found = [cell for cell in cells if cell.strip()]
    if not found:
        raise ConfigurationError(f"The recipe {path} has no code.")
    return found


def _cells(text: str, path: Path) -> list[str]:
    try:
        notebook = json.loads(text)
        if notebook["nbformat"] != _NOTEBOOK_VERSION:
            raise ConfigurationError(
                f"The recipe {path} is a notebook of another version.",
                hint="Open it in JupyterLab and save it.",
            )
        return [
            "".join(cell["source"])
            for cell in notebook["cells"]
            if cell["cell_type"] == "code"
            and _LEFT_OUT not in cell.get("metadata", {}).get("tags", ())
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"The recipe {path} is not a notebook.") from error


def cells_that_ran(content: bytes) -> list[str]:
    """Return the cells of a notebook that have an execution count, in the order in which they ran last. Raises ConfigurationError."""
    try:
        cells = [cell for cell in json.loads(content)["cells"] if cell["cell_type"] == "code"]
        ran = [
            (int(cell["execution_count"]), "".join(cell["source"]))
            for cell in cells
            if cell.get("execution_count")
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigurationError("The notebook in the snapshot cannot be read.") from error
    found = [source for _, source in sorted(ran, key=lambda one: one[0]) if source.strip()]
    if not found:
        raise ConfigurationError(
            "The snapshot has no notebook with cells that ran, of which a recipe could be made.",
            hint="`jupyter gpuckpt template create NAME --from FILE` makes a template of a notebook or a script.",
        )
    return found


def as_notebook(cells: list[str]) -> bytes:
    """Return the cells as a notebook without outputs."""
    listed: list[dict[str, object]] = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell-{number}",
            "metadata": {},
            "outputs": [],
            "source": source,
        }
        for number, source in enumerate(cells)
    ]
    notebook = {
        "cells": listed,
        "metadata": {},
        "nbformat": _NOTEBOOK_VERSION,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1).encode() + b"\n"


def digest_of(cells: list[str]) -> str:
    """Return a digest of what a recipe executes."""
    return hashlib.sha256(msgspec.json.encode(cells)).hexdigest()


def seeds(cells: list[str]) -> bool:
    """Return whether a recipe chooses random numbers itself: it calls a function that has `seed` in its name."""
    return any(_seeds(cell) for cell in cells)


def _seeds(cell: str) -> bool:
    try:
        tree = ast.parse(cell)
    except SyntaxError:  # a magic, for example
        return "seed" in cell
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    names = (getattr(one, "attr", getattr(one, "id", "")) for one in called)
    return any("seed" in name.lower() for name in names)
