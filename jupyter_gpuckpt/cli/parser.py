"""The class of the argument parser, with kinds of arguments that several commands have."""

from __future__ import annotations

import argparse
from typing import NoReturn

from ..errors import ConfigurationError
from ..wire import durations
from ..wire.manifest_records import MAX_TITLE

#: What names a kernel and a snapshot (`naming`).
KERNEL_HELP = "its notebook or id, or a part that is unique"
SNAPSHOT_HELP = "its title or id, or a part that is unique; or latest, or KERNEL:latest"


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `ConfigurationError`."""

    def error(self, message: str) -> NoReturn:
        """Raise `ConfigurationError` instead of ending the process."""
        raise ConfigurationError(f"{self.prog}: {message}.", hint=f"See `{self.prog} --help`.")

    def flag(self, *names_and_help: str) -> None:
        """Add an option without a value."""
        *names, told = names_and_help
        self.add_argument(*names, action="store_true", help=told)

    def kernel(self) -> None:
        """Add the argument that names a kernel."""
        self.add_argument("kernel", metavar="KERNEL", help=KERNEL_HELP)

    def snapshot(self, nargs: str | None = None) -> None:
        """Add the argument that names a snapshot, or several."""
        self.add_argument("snapshot", metavar="SNAPSHOT", nargs=nargs, help=SNAPSHOT_HELP)

    def title(self) -> None:
        """Add the option for the title of a new snapshot."""
        told = "the snapshot's title in lists; a titled snapshot is pinned"
        self.add_argument("--title", metavar="TITLE", type=title, default="", help=told)

    def seconds(self, name: str, told: str) -> None:
        """Add an option whose value is a time; None: it is left out."""
        self.add_argument(name, metavar="TIME", type=_seconds, help=told)


def title(text: str) -> str:
    """Return `text` as the title of a snapshot. Raises ArgumentTypeError if it is too long."""
    if len(text) > MAX_TITLE:
        raise argparse.ArgumentTypeError(f"a title has at most {MAX_TITLE} characters")
    return text


def _seconds(text: str) -> float:
    """Convert texts like `25s`, `2m` or `1.5` to seconds."""
    try:
        return durations.to_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from None
