"""Completion by argcomplete, which knows the names of kernels and snapshots. A build writes static scripts (`hatch_build.py`)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..errors import GpuCkptError
from ..wire import calls
from ..wire.protocol import Kernel
from ..wire.snapshot_records import Snapshot
from .naming import LATEST

if TYPE_CHECKING:
    from ..client import Client

#: How long a daemon may take to answer while a user waits for a completion.
_PATIENCE_SECONDS = 1.0
#: The environment variable with which argcomplete's shell code asks for completions.
REQUEST = "_ARGCOMPLETE"


def complete(parser: argparse.ArgumentParser) -> None:
    """Write the completions and end this process, if argcomplete is installed."""
    try:
        import argcomplete  # noqa: PLC0415 - an extra
    except ImportError:
        return
    completers: dict[object, Callable[..., dict[str, str]]] = {
        "KERNEL": _completer(_kernels),
        "SNAPSHOT": _completer(_snapshots),
        "KERNEL|SNAPSHOT": _completer(_both),
        "A": _completer(_both),
        "B": _completer(_both),
    }
    for action in actions(parser):
        if action.metavar in completers:
            action.completer = completers[action.metavar]  # type: ignore[attr-defined] # argcomplete reads it
    # Options come after a dash: else they would stand before the names.
    argcomplete.autocomplete(parser, always_complete_options=False)


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield all arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from actions(inner)


def _completer(names: Callable[[Client], dict[str, str]]) -> Callable[..., dict[str, str]]:
    def completed(**_options: object) -> dict[str, str]:
        from ..client import Client, starting  # noqa: PLC0415 - an HTTP library

        try:
            starting.require_outside()
            with Client.connect(start=False, patience_seconds=_PATIENCE_SECONDS) as client:
                return names(client)
        except GpuCkptError:
            return {}  # a completion has no place for errors

    return completed


def _kernels(client: Client) -> dict[str, str]:
    kernels: list[Kernel] = client.send(calls.kernels())
    names = [kernel.name for kernel in kernels]
    return {
        kernel.name if names.count(kernel.name) == 1 else kernel.kernel_id: kernel.state.value
        for kernel in kernels
    }


def _snapshots(client: Client) -> dict[str, str]:
    snapshots: list[Snapshot] = client.send(calls.snapshots())
    titles = [one.title for one in snapshots]
    named = {
        one.title if one.title and titles.count(one.title) == 1 else one.snapshot_id: one.name
        for one in snapshots
    }
    return {LATEST: "the newest", **named} if named else {}


def _both(client: Client) -> dict[str, str]:
    return _snapshots(client) | _kernels(client)
