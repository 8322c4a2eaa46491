"""The command `jupyter gpuckpt remote`, which manages buckets to which snapshots are uploaded."""

from __future__ import annotations

import argparse
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from ...errors import ConfigurationError, GpuCkptError
from ...wire.plurals import counted
from ...wire.remote_records import (
    Capabilities,
    Drill,
    Remote,
    RemoteAnswer,
    RemoteVerb,
    RemoteView,
)
from ...wire.statuses import exit_code
from .. import printing
from ..parser import Parser
from ..prune import size_bytes
from . import (
    erase_command,
    fetch_command,
    key_command,
    only_copies,
    prune_command,
    upload_command,
)
from .key_command import ask

SUMMARY = "set up buckets that snapshots are uploaded to"
DESCRIPTION = """\
A remote is a bucket and a prefix: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or a folder, file:///PATH.
Credentials are never given here: they are found where the provider's own tools find them.
"""

_KEY = "let other machines join, list and remove what opens a remote's key, put it back"
_MAX_SNAPSHOTS = 100_000
_ANSWERS = {True: "yes", False: "no"}


def add_arguments(to: Parser) -> None:
    """Add the arguments and commands of `remote`."""
    verbs = to.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="verb")

    def verb(name: str, summary: str) -> Parser:
        added = verbs.add_parser(name, help=summary, description=f"{summary}.", allow_abbrev=False)
        added.add_argument("--json", action="store_true", help="print one JSON document")
        return added

    for name, summary in (
        ("create", "test a bucket, make a new store there, and add it"),
        (
            "add",
            "test a bucket with a store, and add it; asks for the line of a machine that uses it",
        ),
    ):
        _add_new_arguments(verb(name, summary), is_new=name == "create")
    for name, summary in (
        ("test", "test again whether a remote can be used"),
        ("rm", "forget a remote; its content stays there"),
        ("pause", "pause automatic uploads, for example while traffic is metered"),
        ("resume", "resume automatic uploads"),
    ):
        added = verb(name, summary)
        added.add_argument("name", metavar="NAME", help="as it was added")
        if name == "rm":
            added.add_argument(
                "--force",
                action="store_true",
                help="forget it even if it has the only copies of snapshots that are listed here",
            )
    verb("list", "list the remotes")
    fetch_command.add_arguments(
        verb("sessions", "list the snapshots in a remote"),
        verb("fetch", "fetch a snapshot from a remote"),
    )
    upload_command.add_status_arguments(
        verb("status", "show the uploaded snapshots of each remote, those that wait, and why")
    )
    upload_command.add_upload_arguments(
        verb("upload", "upload snapshots now, and wait for the end")
    )
    _add_verify_arguments(
        verb("verify", "fetch a sample of what a remote has, and compare it with its digests")
    )
    prune_command.add_arguments(verb("prune", "remove the snapshots that no rule keeps"))
    key = verbs.add_parser("key", help=_KEY, description=f"{_KEY}.", allow_abbrev=False)
    key_command.add_arguments(key)
    erase_command.add_arguments(
        verb("erase", "remove a session from a remote for good, or everything")
    )


def _add_new_arguments(to: Parser, *, is_new: bool) -> None:
    """Add the arguments of `create` and `add`."""
    to.add_argument("name", metavar="NAME", help="its name on this machine")
    to.add_argument(
        "url",
        metavar="URL",
        nargs=None if is_new else "?",
        default="",
        help="for example s3://bucket/prefix"
        + ("" if is_new else "; only if this machine's key file opens it already"),
    )
    to.add_argument(
        "--set",
        metavar="KEY=VALUE",
        type=_setting,
        action="append",
        default=[],
        help="endpoint, region, profile, virtual_hosted_style_request (s3); endpoint, account_name, use_azure_cli (az);"
        " allow_http=true allows connections without encryption",
    )
    to.add_argument(
        "--upload-rate",
        metavar="SIZE",
        type=size_bytes,
        default=0,
        help="upload no more than SIZE per second: 500k, 20M",
    )
    to.add_argument(
        "--manual",
        action="store_true",
        help="upload only the snapshots that `remote upload` names",
    )
    to.add_argument(
        "--key-file",
        metavar="PATH",
        default="",
        help="the file of this machine's key, which is made if it does not exist. Default: a file in the data directory",
    )


def run(args: Namespace) -> int:
    """Run a command; return the status of ConfigurationError if a tested remote cannot be used."""
    return _VERBS[args.verb](args)


def _create(args: Namespace) -> int:
    return _added(args, ask(RemoteVerb.CREATE, remote=_remote(args)))


def _add(args: Namespace) -> int:
    secret = key_command.joining(args.url)
    return _added(args, ask(RemoteVerb.ADD, remote=_remote(args), secret=secret))


def _remote(args: Namespace) -> Remote:
    remote = Remote(
        args.name,
        args.url,
        dict(args.set),
        upload_rate=args.upload_rate,
        automatic=not args.manual,
        key_file=str(Path(args.key_file).absolute()) if args.key_file else "",
    )
    if args.url:
        remote.check()
    return remote


def _added(args: Namespace, found: RemoteAnswer) -> int:
    status = _say(args, found)
    if not args.json:
        key_command.show_line(found)
    return status


def _test(args: Namespace) -> int:
    return _say(args, ask(RemoteVerb.TEST, args.name))


def _remove(args: Namespace) -> int:
    with only_copies.kept(
        args.name,
        force=args.force,
        hint=f"Fetch them first (`jupyter gpuckpt remote fetch {args.name} SNAPSHOT`), or give --force: they can be resumed"
        " once it is added again.",
    ):
        found = ask(RemoteVerb.REMOVE, args.name)
    if args.json:
        printing.say_json({"remotes": found.remotes})
        return 0
    printing.say(f"Remote {args.name} is forgotten. Its content is still there.")
    printing.say(f"Its key is still in {found.remotes[0].remote.key_file}.")
    return 0


def _pause(args: Namespace) -> int:
    return _paused(args, RemoteVerb.PAUSE, "Automatic uploads are paused for remote")


def _resume(args: Namespace) -> int:
    return _paused(args, RemoteVerb.RESUME, "Automatic uploads are resumed for remote")


def _paused(args: Namespace, verb: RemoteVerb, done: str) -> int:
    found = ask(verb, args.name)
    if args.json:
        printing.say_json({"remotes": found.remotes})
    else:
        printing.say(f"{done} {args.name}.")
    return 0


def _list(args: Namespace) -> int:
    found = ask(RemoteVerb.LIST).remotes
    if args.json:
        printing.say_json({"remotes": found})
        return 0
    rows = [[one.remote.name, one.remote.url, _state(one), _tried(one)] for one in found]
    printing.say(
        printing.table(["REMOTE", "URL", "STATE", "TRIED"], rows) if rows else "No remotes."
    )
    return 0


def _add_verify_arguments(to: argparse.ArgumentParser) -> None:
    """Add the arguments of `remote verify`."""
    to.add_argument("name", metavar="NAME", help="the remote's name")
    to.add_argument(
        "--sample",
        metavar="N",
        type=_count,
        default=10,
        help="fetch N chunks of each of N snapshots. Default: 10",
    )


def _verify(args: Namespace) -> int:
    """Fetch a sample and compare it with its digests; return 1 if any of it is damaged."""
    answer = ask(RemoteVerb.VERIFY, args.name, sample=args.sample)
    found = answer.drill or Drill()
    if args.json:
        printing.say_json({"remote": args.name, "drill": found})
    else:
        _say_drill(found)
    return exit_code(GpuCkptError) if found.damaged else 0


def _say_drill(found: Drill) -> None:
    for one in found.damaged:
        where = f"Snapshot {one.snapshot_id}" if one.snapshot_id else f"Session {one.session_id}"
        printing.warn(f"{where}: {one.name}: {one.why}")
    printing.say(
        f"{found.snapshots} of {counted(found.listed, 'snapshot')},"
        f" {counted(found.chunks, 'chunk')} with {printing.size(found.chunk_bytes)}:"
        f" {len(found.damaged) or 'nothing'} damaged."
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_SNAPSHOTS:
        raise argparse.ArgumentTypeError(f"it has to be a number from 1 to {_MAX_SNAPSHOTS}")
    return int(text)


_VERBS: dict[str, Callable[[Namespace], int]] = {
    "create": _create,
    "add": _add,
    "test": _test,
    "list": _list,
    "rm": _remove,
    "sessions": fetch_command.list_sessions,
    "fetch": fetch_command.fetch,
    "pause": _pause,
    "resume": _resume,
    "status": upload_command.status,
    "upload": upload_command.upload,
    "key": key_command.run,
    "erase": erase_command.run,
    "verify": _verify,
    "prune": prune_command.run,
}


def _say(args: Namespace, answer: RemoteAnswer) -> int:
    """Print the capabilities of tested remotes; return the command's exit status."""
    found = answer.remotes
    if args.json:
        printing.say_json(answer)
    for one in found:
        if one.remote.capabilities and not args.json:
            printing.say(printing.table(["CAPABILITY", ""], _rows(one.remote.capabilities)))
        for warning in one.warnings:
            printing.warn(warning)
        for refusal in one.refusals:
            printing.warn(f"It cannot be used: {refusal}.")
    return exit_code(ConfigurationError) if any(one.refusals for one in found) else 0


def _rows(found: Capabilities) -> list[list[str]]:
    return [
        ["creates objects without overwriting", _ANSWERS[found.create_only]],
        ["replaces an object only if it is unchanged", _ANSWERS[found.compare_and_swap]],
        ["returns parts of objects", _ANSWERS[found.ranges]],
        ["lists what was just written", _ANSWERS[found.lists]],
        ["reports a missing object as missing", _ANSWERS[found.tells_missing]],
        ["deletes", _ANSWERS[found.deletes]],
        ["keeps old versions", _ANSWERS[found.versioned]],
        ["its clock is ahead by", f"{round(found.clock_ahead_seconds)} s"],
    ]


def _state(view: RemoteView) -> str:
    if view.refusals:
        return "cannot be used"
    return f"usable, {counted(len(view.warnings), 'warning')}" if view.warnings else "usable"


def _tried(view: RemoteView) -> str:
    found = view.remote.capabilities
    return printing.age(time.time() - found.tried_at) if found else "never"


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        # Not repeated: it may be a secret.
        raise argparse.ArgumentTypeError("it has to be KEY=VALUE")
    return key, value
