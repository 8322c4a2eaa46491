"""Implements `jupyter gpuckpt remote key`: who can open a remote. Secrets are typed, never given as arguments."""

from __future__ import annotations

import getpass
import shlex
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from .. import daemon_settings
from ..errors import ConfigurationError, OperationCancelled
from ..remote_records import GivenSecret, HolderKind, Remote, RemoteAnswer, RemoteCall, RemoteVerb
from . import output


def add_arguments(to: ArgumentParser) -> None:
    """What can be typed after `remote key`."""
    to.add_argument("name", metavar="NAME", help="of the remote")
    what = to.add_mutually_exclusive_group()
    what.add_argument("--add-passphrase", action="store_true", help="let in who knows a passphrase")
    what.add_argument("--add-file", metavar="PATH", default="", help="let in who has a key file")
    what.add_argument(
        "--add-command", metavar="COMMAND", default="", help="let in who can run a command"
    )
    what.add_argument(
        "--add-recovery-phrase", action="store_true", help="make another 24 words for paper"
    )
    what.add_argument(
        "--remove", metavar="HOLDER", default="", help="take away a holder's way in, by its id"
    )
    what.add_argument(
        "--rekey",
        action="store_true",
        help="give what is written from now on a new key, which only this machine has, and a new recovery phrase",
    )
    to.add_argument("--label", metavar="TEXT", default="", help="what the new holder is called")
    to.add_argument("-y", "--yes", action="store_true", help="do not ask")


def add_openers(to: ArgumentParser) -> None:
    """What says how a store that is there already can be opened."""
    opener = to.add_mutually_exclusive_group()
    opener.add_argument(
        "--passphrase",
        action="store_true",
        help="there are snapshots already: ask for a passphrase that opens them",
    )
    opener.add_argument(
        "--recovery-phrase",
        action="store_true",
        help="there are snapshots already: ask for the 24 words",
    )


def opener(given: Namespace) -> GivenSecret | None:
    """Ask for the secret that was chosen with `add_openers`."""
    if given.passphrase:
        return GivenSecret(HolderKind.PASSPHRASE, _typed("Passphrase"))
    if given.recovery_phrase:
        return GivenSecret(HolderKind.RECOVERY, _typed("Recovery phrase, 24 words"))
    return None


def run(given: Namespace) -> int:
    """Do what was typed, and list the holders."""
    new = _new(given)
    if new:
        answer = ask(RemoteVerb.ADD_HOLDER, given.name, holder=given.label, new=new)
    elif given.remove:
        answer = ask(RemoteVerb.REMOVE_HOLDER, given.name, holder=given.remove)
    elif given.rekey:
        _confirm(given)
        answer = ask(RemoteVerb.REKEY, given.name)
    else:
        answer = ask(RemoteVerb.HOLDERS, given.name)
    if given.json:
        output.say_json(answer)
        return 0
    rows = [
        [one.holder_id, one.kind, one.name, output.age(time.time() - one.added), "here" * one.here]
        for one in answer.holders
    ]
    output.say(output.table(["HOLDER", "OPENS BY", "NAME", "ADDED", ""], rows))
    if given.remove:
        output.note(
            "What that holder may have copied still opens what is there. `--rekey` protects what is written from now on."
        )
    show_phrase(answer)
    return 0


def show_phrase(answer: RemoteAnswer) -> None:
    """Show the words of a new recovery phrase, this once."""
    if answer.recovery_phrase:
        words = answer.recovery_phrase.split()
        lines = [" ".join(words[start : start + 6]) for start in range(0, len(words), 6)]
        output.say("\nRecovery phrase:\n\n    " + "\n    ".join(lines) + "\n")
        output.say(
            "Write it down and keep it away from this machine: it is shown only now. Without it or a holder's secret\n"
            "nobody can read what is in the remote, ever."
        )


def ask(
    verb: RemoteVerb,
    name: str = "",
    *,
    remote: Remote | None = None,
    secret: GivenSecret | None = None,
    holder: str = "",
    new: GivenSecret | None = None,
) -> RemoteAnswer:
    """Have it done, with the data directory that the environment names."""
    from ..client import remotes  # noqa: PLC0415 - too slow for --help

    data_dir = str(daemon_settings.from_environment().data)
    return remotes.ask(RemoteCall(verb, data_dir, name, remote, secret, holder, new))


def _new(given: Namespace) -> GivenSecret | None:
    if given.add_passphrase:
        text = _typed("New passphrase")
        if sys.stdin.isatty() and _typed("The same again") != text:
            raise ConfigurationError("The two passphrases differ.", hint="Try again.")
        return GivenSecret(HolderKind.PASSPHRASE, text)
    if given.add_file:
        return GivenSecret(HolderKind.FILE, path=str(Path(given.add_file).absolute()))
    if given.add_command:
        return GivenSecret(HolderKind.COMMAND, command=shlex.split(given.add_command))
    return GivenSecret(HolderKind.RECOVERY) if given.add_recovery_phrase else None


def _confirm(given: Namespace) -> None:
    if given.yes:
        return
    output.note("All other holders are removed; their machines have to be added again.")
    if not sys.stdin.isatty() or not output.ask(f"Rekey remote {given.name}?"):
        raise OperationCancelled("Nothing was changed.", hint="--yes does not ask.")


def _typed(question: str) -> str:
    """Return a line that is typed unseen, or, where there is no terminal, read from the standard input."""
    if sys.stdin.isatty():
        return getpass.getpass(f"{question}: ")
    return sys.stdin.readline().rstrip("\r\n")
