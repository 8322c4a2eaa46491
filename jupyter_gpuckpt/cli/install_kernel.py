"""The command `jupyter gpuckpt install-kernel`."""

from __future__ import annotations

from argparse import Namespace

from . import printing
from .parser import Parser

SUMMARY = "install a kernel whose state is kept when an editor closes"
DESCRIPTION = (
    "It is for VS Code, Zed, Emacs and other programs that start kernels by themselves: choose it there instead of the kernel that it"
    " starts."
)


def add_arguments(to: Parser) -> None:
    """Add the command's arguments."""
    to.add_argument(
        "--for",
        dest="kernel_name",
        metavar="NAME",
        default="python3",
        help="the installed kernel that it starts; default: python3",
    )


def run(args: Namespace) -> int:
    """Install the kernelspec."""
    from ..client.relayed_kernelspecs import install  # noqa: PLC0415 - too slow for --help

    folder, shown = install(args.kernel_name)
    printing.result(
        {"folder": str(folder), "display_name": shown},
        f'Installed "{shown}" in {folder}. Choose it in your editor.',
        as_json=args.json,
    )
    return 0
