# PYTHON_ARGCOMPLETE_OK
"""The entry point of `jupyter gpuckpt`: it parses arguments, runs a command and returns its exit status."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from ..errors import GpuCkptError
from ..wire.statuses import exit_code
from . import actions, arguments, completion, printing

INTERRUPTED, READER_GONE, UNEXPECTED, USAGE = 130, 141, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status (`arguments.EPILOG` lists them).

    Errors of the project are printed, not raised; for programs (`--json`) all errors are.
    """
    command_line = sys.argv[1:] if argv is None else list(argv)
    as_json = "--json" in command_line
    try:
        status = _run(command_line)
        sys.stdout.flush()
    except GpuCkptError as error:
        printing.fail(error, as_json=as_json)
        status = exit_code(type(error))
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        # As in `... | head`. Without the redirection Python would report the broken pipe again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = READER_GONE
    except SystemExit as asked:  # --help and --version
        status = asked.code if isinstance(asked.code, int) else 0
    except Exception as error:
        if not as_json:
            raise
        traceback.print_exc()
        printing.fail(error, as_json=True)
        status = UNEXPECTED
    return status


def _run(command_line: Sequence[str]) -> int:
    parser = arguments.parser()
    if completion.REQUEST in os.environ:
        completion.complete(parser)
    args = parser.parse_args(command_line)
    if args.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    return actions.ACTIONS[args.command](args)
