"""The command `jupyter gpuckpt remote key`, which manages the holders of a remote's key.

Secrets are typed, never given as arguments.
"""

from __future__ import annotations

import getpass
import shlex
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ...errors import ConfigurationError, OperationCancelled, error_from
from ...wire import daemon_settings
from ...wire.remote_records import (
    FarPruneRequest,
    GivenSecret,
    HolderKind,
    Remote,
    RemoteAnswer,
    RemoteCall,
    RemoteVerb,
)
from .. import printing

_NO_RULE = FarPruneRequest()


def add_arguments(to: ArgumentParser) -> None:
    """Add the arguments of `remote key`."""
    to.add_argument("name", metavar="NAME", help="the remote's name")
    what = to.add_mutually_exclusive_group()
    what.add_argument(
        "--add-passphrase", action="store_true", help="add a holder with a passphrase"
    )
    what.add_argument("--add-file", metavar="PATH", default="", help="add a holder with a key file")
    what.add_argument(
        "--add-command",
        metavar="COMMAND",
        default="",
        help="add a holder with a command that prints the key",
    )
    what.add_argument(
        "--add-recovery-phrase",
        action="store_true",
        help="add a new recovery phrase of 24 words, for paper",
    )
    what.add_argument("--remove", metavar="HOLDER", default="", help="remove a holder, by its id")
    what.add_argument(
        "--rekey",
        action="store_true",
        help="use a new key for everything written from now on, held by this machine and a new recovery phrase only",
    )
    to.add_argument("--label", metavar="TEXT", default="", help="name of the new holder")
    to.add_argument("-y", "--yes", action="store_true", help="do not ask")


def add_openers(to: ArgumentParser) -> None:
    """Add the options that choose the secret for a remote that already has snapshots."""
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


def opener(args: Namespace) -> GivenSecret | None:
    """Return the secret that the options of `add_openers` choose, asked for on the terminal; None without such an option."""
    if args.passphrase:
        return GivenSecret(HolderKind.PASSPHRASE, _typed("Passphrase"))
    if args.recovery_phrase:
        return GivenSecret(HolderKind.RECOVERY, _typed("Recovery phrase, 24 words"))
    return None


def run(args: Namespace) -> int:
    """Run the command and list the holders."""
    new = _new(args)
    if new:
        answer = ask(RemoteVerb.ADD_HOLDER, args.name, holder=args.label, new=new)
    elif args.remove:
        answer = ask(RemoteVerb.REMOVE_HOLDER, args.name, holder=args.remove)
    elif args.rekey:
        _confirm(args)
        answer = ask(RemoteVerb.REKEY, args.name)
    else:
        answer = ask(RemoteVerb.HOLDERS, args.name)
    if args.json:
        printing.say_json(answer)
        return 0
    rows = [
        [
            one.holder_id,
            one.kind,
            one.name,
            printing.age(time.time() - one.added),
            "here" * one.here,
        ]
        for one in answer.holders
    ]
    printing.say(printing.table(["HOLDER", "OPENS BY", "NAME", "ADDED", ""], rows))
    if args.remove:
        printing.note(
            "A key that this holder has copied still opens the existing content. `--rekey` protects what is written from now on."
        )
    show_phrase(answer)
    return 0


def show_phrase(answer: RemoteAnswer) -> None:
    """Print the 24 words of a new recovery phrase; they are shown only once."""
    if answer.recovery_phrase:
        words = answer.recovery_phrase.split()
        lines = [" ".join(words[start : start + 6]) for start in range(0, len(words), 6)]
        printing.say("\nRecovery phrase:\n\n    " + "\n    ".join(lines) + "\n")
        printing.say(
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
    session: str = "",
    sample: int = 0,
    prune: FarPruneRequest = _NO_RULE,
) -> RemoteAnswer:
    """Run a command about remotes in a process of its own and return its result. Raises its error as its own class."""
    from ...client import remote_commands  # noqa: PLC0415 - too slow for --help

    data_dir = str(daemon_settings.from_environment().data)
    call = RemoteCall(verb, data_dir, name, remote, secret, holder, new, session, sample, prune)
    answer = remote_commands.ask(call)
    if answer.error:
        if answer.recovery_phrase:
            printing.warn(
                f"Recovery phrase, valid unless the repeated command shows another: {answer.recovery_phrase}"
            )
        raise error_from(answer.error)
    return answer


def _new(args: Namespace) -> GivenSecret | None:
    if args.add_passphrase:
        text = _typed("New passphrase")
        if sys.stdin.isatty() and _typed("The same again") != text:
            raise ConfigurationError("The two passphrases differ.", hint="Try again.")
        return GivenSecret(HolderKind.PASSPHRASE, text)
    if args.add_file:
        return GivenSecret(HolderKind.FILE, path=str(Path(args.add_file).absolute()))
    if args.add_command:
        return GivenSecret(HolderKind.COMMAND, command=shlex.split(args.add_command))
    return GivenSecret(HolderKind.RECOVERY) if args.add_recovery_phrase else None


def _confirm(args: Namespace) -> None:
    if args.yes:
        return
    printing.note("All other holders are removed; their machines have to be added again.")
    if not sys.stdin.isatty() or not printing.ask(f"Rekey remote {args.name}?"):
        raise OperationCancelled("Nothing was changed.", hint="--yes does not ask.")


def _typed(question: str) -> str:
    """Ask for a line without echo; without a terminal read it from stdin."""
    if sys.stdin.isatty():
        return getpass.getpass(f"{question}: ")
    return sys.stdin.readline().rstrip("\r\n")
