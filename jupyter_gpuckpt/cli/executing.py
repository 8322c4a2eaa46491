"""The command `execute`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from . import output

SUMMARY = "execute a notebook, and go on where it was after whatever ended the execution"
DESCRIPTION = (
    "As nbclient does: cells tagged skip-execution are left out, an error ends the notebook unless its cell is tagged raises-exception."
    " The kernel outlives this command: the same command, given again, goes on with the kernel, or from its last save."
)
_FAILED, _STOPPED = 1, 130


def add_arguments(to: ArgumentParser, seconds: Callable[[str], float]) -> None:
    """Add the command's arguments; `seconds` parses times."""
    to.add_argument("notebook", metavar="NOTEBOOK", help="the notebook")
    to.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help="where the notebook goes with its outputs, which are there as they come",
    )
    to.add_argument(
        "--kernel", metavar="NAME", default="", help="the kernel's name; default: the notebook's"
    )
    to.add_argument(
        "--timeout",
        metavar="TIME",
        type=seconds,
        help="of every cell (90, 10m, 2h), by the kernel's clock, which stands still while it is suspended; default: none",
    )
    to.add_argument("--allow-errors", action="store_true", help="go on after errors of cells")
    to.add_argument(
        "--autosave",
        metavar="TIME",
        type=seconds,
        help="save the kernel that often, for when its machine or container ends without a warning; default: never",
    )
    to.add_argument(
        "--restart",
        action="store_true",
        help="begin anew; the kernel of the earlier execution is suspended",
    )
    to.add_argument(
        "--from",
        dest="from_snapshot",
        metavar="SNAPSHOT",
        default="",
        help="go on from the snapshot of an execution on another machine, after `remote fetch` or `import`",
    )


def execute(given: Namespace) -> int:
    """Execute a notebook and return the exit status."""
    from ..headless import execute as headless  # noqa: PLC0415 - nbclient, too slow for --help

    wanted = headless.Wanted(
        Path(given.notebook),
        Path(given.output),
        given.kernel,
        given.timeout,
        given.allow_errors,
        given.autosave,
        given.restart,
        given.from_snapshot,
    )
    try:
        with output.ProgressBar(f"Executing {wanted.notebook.name}") as bar:
            error = headless.execute(wanted, bar.show_count, output.warn)
    except headless.Stopped:
        output.note("The notebook was stopped. The same command goes on with it.")
        return _STOPPED
    if given.json:
        ended = f"{type(error).__name__}: {error}" if error else ""
        output.say_json({"output": str(wanted.output), "failed": error is not None, "why": ended})
    elif error is not None:
        output.note(str(error))
    return _FAILED if error is not None else 0
