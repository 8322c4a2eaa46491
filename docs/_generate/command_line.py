"""The commands of `jupyter gpuckpt`, from its argument parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from jupyter_gpuckpt.cli import arguments

from .markdown import code, escaped, sentence, table


def page() -> str:
    """Return a section for every command and the exit statuses."""
    sections = [_section(parser) for parser in commands(arguments.parser())]
    return "\n\n".join([*sections, "## Exit status", _statuses()])


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of all commands, those within others after these."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in dict.fromkeys(action.choices.values()):
                yield inner
                yield from commands(inner)


def _statuses() -> str:
    _, told = " ".join(arguments.EPILOG.split()).split("Exit status: ")
    return table(["Status", "Meaning"], [one.split(" ", 1) for one in told.rstrip(".").split(", ")])


def _usage(parser: argparse.ArgumentParser) -> str:
    prefix = "usage: "
    return (
        parser.format_usage().removeprefix(prefix).replace("\n" + " " * len(prefix), "\n").strip()
    )


def _section(parser: argparse.ArgumentParser) -> str:
    depth = parser.prog.removeprefix(arguments.PROGRAM).count(" ")
    rows = [
        (code(_name(action)), escaped(sentence(_help(parser, action))))
        for action in parser._actions
        if not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
        and action.help is not argparse.SUPPRESS
    ]
    parts = [
        f"{'#' * (depth + 1)} `{parser.prog}`",
        escaped(sentence(parser.description or "")),
        f"```text\n{_usage(parser)}\n```",
        table(["Argument", "Meaning"], rows) if rows else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _name(action: argparse.Action) -> str:
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    value = value if isinstance(value, str) else " ".join(value)
    if action.choices is not None and not action.metavar:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings:
        return value
    return ", ".join(f"{option} {value}".strip() for option in action.option_strings)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = parser._get_formatter()
    return formatter._expand_help(action) if action.help else ""
