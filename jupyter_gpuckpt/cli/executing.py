"""The command `jupyter gpuckpt execute`, which executes a notebook."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from ..wire import calls
from . import printing
from .daemon_calls import daemon
from .naming import one_snapshot
from .parser import Parser

SUMMARY = "execute a notebook, or continue an execution that was interrupted"
DESCRIPTION = (
    "It works as nbclient: cells tagged skip-execution are left out, and an error ends the notebook unless its cell is tagged"
    " raises-exception. The kernel outlives this command: the same command, given again, goes on with the kernel, or from its last save."
)
_FAILED, _STOPPED = 1, 130


def add_arguments(to: Parser) -> None:
    """Add the command's arguments."""
    to.add_argument("notebook", metavar="NOTEBOOK", help="the notebook")
    to.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help="the file for the notebook with its outputs, which are written as they come",
    )
    to.add_argument(
        "--kernel", metavar="NAME", default="", help="the kernel's name; default: the notebook's"
    )
    to.seconds(
        "--timeout",
        "the time limit of every cell (90, 10m, 2h), by the kernel's clock, which stops while it is suspended; default: none",
    )
    to.flag("--allow-errors", "go on after errors of cells")
    to.seconds(
        "--lose-at-most",
        "how much work may be lost if the machine or container ends without a warning: the kernel is saved so often; 0: never;"
        " default: 5m, or longer where saves take more than 5%% of a processor",
    )
    to.flag("--restart", "start a new execution; the kernel of the earlier one is suspended")
    to.add_argument(
        "--from",
        dest="from_snapshot",
        metavar="SNAPSHOT",
        default="",
        help="continue from the snapshot of an execution on another machine, after `remote fetch` or `import`",
    )


def execute(args: Namespace) -> int:
    """Execute a notebook and return the exit status."""
    from ..headless import execute as headless  # noqa: PLC0415 - nbclient, too slow for --help

    options = headless.ExecutionOptions(
        Path(args.notebook),
        Path(args.output),
        args.kernel,
        args.timeout,
        args.allow_errors,
        args.lose_at_most,
        args.restart,
        _snapshot_id(args.from_snapshot),
    )
    try:
        with printing.ProgressBar(f"Executing {options.notebook.name}") as bar:
            error = headless.execute(options, bar.show_count, printing.warn)
    except headless.Stopped:
        printing.note("The notebook was stopped. The same command goes on with it.")
        return _STOPPED
    if args.json:
        ended = f"{type(error).__name__}: {error}" if error else ""
        printing.say_json(
            {"output": str(options.output), "failed": error is not None, "why": ended}
        )
    elif error is not None:
        printing.note(str(error))
    return _FAILED if error is not None else 0


def _snapshot_id(named: str) -> str:
    """Return the id of the only snapshot that `named` names; empty without a name."""
    if not named:
        return ""
    with daemon(waits=True) as client:
        return one_snapshot(named, client.send(calls.snapshots()))
