"""What an ordinary kernel of a template's kernelspec executes at its start: it runs the recipe before the first cell.

It stands for the template where no copy of a kernel can be made, and in clients that know nothing of templates. The recipe runs when the
first cell comes, not at once: clients give up a kernel that does not answer for a minute. This file is copied beside the recipe, and
uses nothing but IPython.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from IPython import get_ipython
from IPython.utils.capture import capture_output

#: These two are replaced in the copy: the file that the recipe was made from, and the template's name.
SOURCE, NAME = "", ""


def begin(shell: Any, folder: str) -> None:
    """Run the recipe before the first cell."""

    def run(*_: Any) -> None:
        shell.events.unregister("pre_run_cell", run)
        trouble = run_recipe(shell, folder)
        if trouble:
            print(f"The recipe of the template {NAME} failed: {trouble}", file=sys.stderr)  # noqa: T201 - in the cell

    shell.events.register("pre_run_cell", run)


def run_recipe(shell: Any, folder: str) -> str:
    """Run the cells of the recipe until one fails; return what failed, or an empty text."""
    try:
        cells = read_cells(folder)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    # What a recipe prints, and its error, are none of the cell that waits for it.
    shown = shell._showtraceback
    shell._showtraceback = _show_nothing
    try:
        with capture_output():
            for number, cell in enumerate(cells, 1):
                result = shell.run_cell(cell, store_history=False, silent=True)
                failure = result.error_before_exec or result.error_in_exec
                if failure is not None:
                    return f"cell {number}: {type(failure).__name__}: {failure}"
    finally:
        shell._showtraceback = shown
    return ""


def _show_nothing(*_: Any, **__: Any) -> None:
    """Do nothing with a traceback."""


def read_cells(folder: str) -> list[str]:
    """Return the cells of the file that the recipe was made from, if it can be read, else of the copy."""
    for path in filter(None, (SOURCE, os.path.join(folder, "recipe.ipynb"))):  # noqa: PTH118 - Python 3.8
        try:
            with open(path, encoding="utf-8") as file:  # noqa: PTH123 - Python 3.8
                text = file.read()
            if not path.endswith(".ipynb"):
                return [text]
            return [
                "".join(cell["source"])
                for cell in json.loads(text)["cells"]
                if cell["cell_type"] == "code"
                and "skip-execution" not in cell.get("metadata", {}).get("tags", ())
            ]
        except (OSError, ValueError, LookupError, TypeError):
            continue
    raise FileNotFoundError("the recipe is gone")


if __name__ == "gpuckpt_recipe":
    begin(get_ipython(), os.path.dirname(__file__))  # noqa: PTH120 - Python 3.8
