"""The command `jupyter gpuckpt remote key`, which manages the entries of a remote's key, and lets other machines join.

Secrets are typed, or read from stdin, never given as arguments.
"""

from __future__ import annotations

import getpass
import sys
import time
from argparse import ArgumentParser, Namespace

from ...errors import ConfigurationError, OperationCancelled, error_from
from ...wire import daemon_settings, join_line
from ...wire.remote_records import (
    GivenSecret,
    Remote,
    RemoteAnswer,
    RemoteCall,
    RemotePruneRequest,
    RemoteVerb,
)
from .. import printing

_NO_RULE = RemotePruneRequest()


def add_arguments(to: ArgumentParser) -> None:
    """Add the actions of `remote key`."""
    actions = to.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")
    for name, summary in (
        ("list", "list what opens the key: key files of machines, passwords, codes"),
        ("code", "add a new code, and print the line by which other machines join"),
        ("password", "add a password; it is asked for"),
        ("remove", "remove an entry"),
        (
            "rotate",
            "use a new key for everything written from now on, which this machine and a new code open",
        ),
        ("restore", "put this machine's copy of the key back into a remote that lost it"),
    ):
        action = actions.add_parser(
            name, help=summary, description=f"{summary}.", allow_abbrev=False
        )
        action.add_argument("name", metavar="NAME", help="the remote's name")
        action.add_argument("--json", action="store_true", help="print one JSON document")
        if name == "remove":
            action.add_argument("entry", metavar="ENTRY", help="its id, as `list` shows it")
        if name == "rotate":
            action.add_argument("-y", "--yes", action="store_true", help="do not ask")


def joining(url: str) -> GivenSecret | None:
    """Return the line of another machine, and the password if it has no code; None for a remote that is named by its URL."""
    if url:
        return None
    line = _typed("The line of `remote create` or `remote key code`")
    password = "" if join_line.parse(line).code else _typed("Password")
    return GivenSecret(line, password)


def run(args: Namespace) -> int:
    """Run the action, and list the entries."""
    if args.action == "rotate":
        _confirm(args)
    secret = _new_password() if args.action == "password" else None
    entry = args.entry if args.action == "remove" else ""
    answer = ask(_VERBS[args.action], args.name, entry=entry, secret=secret)
    if args.json:
        printing.say_json(answer)
        return 0
    rows = [
        [
            one.entry_id,
            one.kind,
            one.host,
            one.user,
            printing.age(time.time() - one.added),
            "here" * one.here,
        ]
        for one in answer.entries
    ]
    printing.say(printing.table(["ENTRY", "OPENED BY", "HOST", "USER", "ADDED", ""], rows))
    if args.action == "remove":
        printing.note(
            "A key that was copied before still opens the present content. `remote key rotate` protects what is written from now on."
        )
    show_line(answer)
    return 0


def show_line(answer: RemoteAnswer) -> None:
    """Print the line by which other machines join; its code is shown only once."""
    if not answer.line:
        return
    printing.say(
        f"\nThe line for `jupyter gpuckpt remote add NAME` on other machines:\n\n{answer.line}\n"
    )
    if join_line.parse(answer.line).code:
        printing.say(
            "Its last part is a secret. Keep the line away from this machine: it is shown only now. If all machines of the remote are\n"
            "lost, nobody can read its content without the line or a password (`remote key password`)."
        )


def ask(
    verb: RemoteVerb,
    name: str = "",
    *,
    remote: Remote | None = None,
    secret: GivenSecret | None = None,
    entry: str = "",
    session: str = "",
    sample: int = 0,
    prune: RemotePruneRequest = _NO_RULE,
) -> RemoteAnswer:
    """Run a command about remotes in a process of its own and return its result. Raises its error as its own class."""
    from ...client import programs  # noqa: PLC0415 - too slow for --help

    data_dir = str(daemon_settings.from_environment().data)
    call = RemoteCall(verb, data_dir, name, remote, secret, entry, session, sample, prune)
    answer = programs.ask_remotes(call)
    if answer.error:
        raise error_from(answer.error)
    return answer


_VERBS = {
    "list": RemoteVerb.LIST_KEY,
    "code": RemoteVerb.ADD_CODE,
    "password": RemoteVerb.ADD_PASSWORD,
    "remove": RemoteVerb.REMOVE_ENTRY,
    "rotate": RemoteVerb.ROTATE_KEY,
    "restore": RemoteVerb.RESTORE_KEY,
}


def _new_password() -> GivenSecret:
    text = _typed("New password")
    if sys.stdin.isatty() and _typed("The same again") != text:
        raise ConfigurationError("The two passwords differ.", hint="Try again.")
    return GivenSecret(password=text)


def _confirm(args: Namespace) -> None:
    if args.yes:
        return
    printing.note("All other entries are removed; those machines have to be added again.")
    if not sys.stdin.isatty() or not printing.ask(f"Rotate the key of remote {args.name}?"):
        raise OperationCancelled("Nothing was changed.", hint="--yes does not ask.")


def _typed(question: str) -> str:
    """Ask for a line without echo; without a terminal read it from stdin."""
    if sys.stdin.isatty():
        return getpass.getpass(f"{question}: ")
    return sys.stdin.readline().rstrip("\r\n")
