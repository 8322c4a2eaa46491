"""The command `jupyter gpuckpt mcp`, which serves tools for AI agents over MCP."""

from __future__ import annotations

import os
from argparse import Namespace

from .parser import Parser

SUMMARY = "serve tools for AI agents over MCP, by standard input and output"
DESCRIPTION = (
    "An MCP client starts it: list, save, restore, branch, compare, run code, try several pieces of code. It reaches the kernels of this"
    " user's Jupyter servers through those servers, and kernels without a server through the daemon. It needs the extra [mcp]."
)
#: The variable with the token of the server that --url names: arguments can be read by other users.
_TOKEN = "JUPYTER_TOKEN"  # noqa: S105 - its name


def add_arguments(command: Parser) -> None:
    """Add the arguments of the command."""
    command.flag("--read-only", "only the tools that list and compare")
    command.add_argument(
        "--url",
        metavar="URL",
        default="",
        help=f"reach only the kernels of this Jupyter server, with the token in ${_TOKEN}; default: all servers of this user",
    )
    command.add_argument(
        "--max-branches",
        metavar="N",
        type=int,
        default=12,
        help="the most branches at the same time (default: %(default)s)",
    )


def run(args: Namespace) -> int:
    """Serve the tools until the client ends."""
    from ..tools.mcp_stdio import serve  # noqa: PLC0415 - too slow for --help
    from ..tools.running_servers import FoundServer  # noqa: PLC0415 - the same
    from ..tools.tool_functions import Limits  # noqa: PLC0415 - the same

    server = None
    if args.url:
        server = FoundServer(f"{args.url.rstrip('/')}/", os.environ.get(_TOKEN, ""))
    serve(server, Limits(branches=args.max_branches), reads_only=args.read_only)
    return 0
