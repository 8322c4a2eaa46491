"""What can be typed after `jupyter gpuckpt`."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from ..errors import ConfigurationError
from ..protocol import SOME_NOT_SAVED, package_version
from . import prune

PROGRAM = "jupyter gpuckpt"

DESCRIPTION = """\
Save, suspend and resume running Jupyter kernels, with their processes and GPU memory.
"""

EPILOG = """\
Kernels and snapshots can be named by any beginning of their id that is unique.

Exit status: 0 done, 1 something unexpected, 2 wrong usage, 3 this machine cannot,
4 this kernel cannot be saved, 5 not found, 6 not now, 7 daemon or store out of reach,
8 the save or resume failed, 9 no room, 10 the store is damaged, 11 some of several
kernels were not saved, 130 interrupted.
"""

_KERNEL_HELP = "its id, or the beginning of it"


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are errors like all others."""

    def error(self, message: str) -> NoReturn:
        """Raise `ConfigurationError` instead of ending the process."""
        raise ConfigurationError(f"{self.prog}: {message}.", hint=f"See `{self.prog} --help`.")


def parser() -> argparse.ArgumentParser:
    """The parser; the parsed arguments have `command`, `json` and what the command takes."""
    top = Parser(
        prog=PROGRAM,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"jupyter-gpuckpt {package_version()}")
    top.set_defaults(command=None, json=False)
    commands = top.add_subparsers(title="commands", metavar="COMMAND")

    def command(name: str, summary: str, description: str = "") -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}. {description}".strip(),
            allow_abbrev=False,
        )
        added.set_defaults(command=name)
        added.add_argument(
            "--json",
            action="store_true",
            help='print one JSON document; errors become {"error": {...}}',
        )
        return added

    command(
        "doctor",
        "say whether kernels can be saved on this machine, and what would help",
        "Exit status 3 if they cannot.",
    )
    command("ps", "list the kernels", "PID is what `ps` and `nvidia-smi` outside a kernel show.")
    _kernel(command("save", "save a kernel and let it carry on"))
    suspend = command(
        "suspend",
        "save a kernel, then stop its processes and free its memory",
        "With --all every running kernel of this user, for the hook that runs before a machine or container is stopped: status"
        f" {SOME_NOT_SAVED} if some could not be saved.",
    )
    suspend.add_argument("kernel", metavar="KERNEL", nargs="?", default="", help=_KERNEL_HELP)
    suspend.add_argument("--all", action="store_true", help="all kernels that run")
    suspend.add_argument(
        "--within",
        metavar="TIME",
        type=_seconds,
        help="with --all: what is not saved by then (25s, 2m) is undone and runs on",
    )
    _kernel(
        command(
            "park",
            "move a kernel's GPU memory to RAM and free the GPU",
            "Its process goes on; its next cell in a notebook, or `resume`, moves the memory back.",
        )
    )
    resume = command("resume", "bring a suspended or parked kernel back")
    _kernel(resume)
    resume.add_argument(
        "--snapshot", metavar="ID", default="", help="the snapshot to go back to (the latest one)"
    )
    listing = command("list", "list the snapshots, newest first")
    listing.add_argument("--kernel", metavar="ID", default="", help="of this kernel only")
    show = command("show", "show everything about a snapshot")
    show.add_argument("snapshot", metavar="SNAPSHOT", help="its id, or the beginning of it")
    remove = command(
        "rm",
        "delete snapshots",
        "The latest snapshot of a suspended kernel is the kernel itself: it is not deleted.",
    )
    remove.add_argument(
        "snapshot", metavar="SNAPSHOT", nargs="+", help="their ids, or the beginnings of them"
    )
    remove.add_argument("-y", "--yes", action="store_true", help="do not ask")
    prune.add_arguments(command("prune", prune.SUMMARY, prune.DESCRIPTION))
    return top


def _kernel(to: argparse.ArgumentParser) -> None:
    to.add_argument("kernel", metavar="KERNEL", help=_KERNEL_HELP)


def _seconds(text: str) -> float:
    """`25s`, `2m`, `1.5` as seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: 25s, 2m and 90 are")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
