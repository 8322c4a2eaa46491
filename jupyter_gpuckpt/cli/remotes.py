"""Implements `jupyter gpuckpt remote`: buckets to which snapshots are uploaded."""

from __future__ import annotations

import argparse
import shlex
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from ..errors import ConfigurationError
from ..remote_records import (
    Capabilities,
    HolderKind,
    KeySource,
    Remote,
    RemoteAnswer,
    RemoteVerb,
    RemoteView,
    secrets_in,
)
from ..statuses import exit_code
from . import far_sessions, output, remote_keys, uploads
from .prune import size_bytes
from .remote_keys import ask

SUMMARY = "set up buckets that snapshots are uploaded to"
DESCRIPTION = """\
A remote is a bucket and a prefix: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or a folder, file:///PATH.
Credentials are never given here: they are found where the provider's own tools find them.
"""

_SAID = {None: "unknown", True: "yes", False: "no"}


def add_arguments(to: ArgumentParser) -> None:
    """What can be typed after `remote`."""
    verbs = to.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="verb")

    def verb(name: str, summary: str) -> ArgumentParser:
        added = verbs.add_parser(name, help=summary, description=f"{summary}.", allow_abbrev=False)
        added.add_argument("--json", action="store_true", help="print one JSON document")
        return added

    add = verb("add", "try out a bucket and remember it")
    add.add_argument("name", metavar="NAME", help="what it is called here")
    add.add_argument("url", metavar="URL", help="for example s3://bucket/prefix")
    add.add_argument(
        "--set",
        metavar="KEY=VALUE",
        type=_setting,
        action="append",
        default=[],
        help="endpoint, region, profile, virtual_hosted_style_request (s3); endpoint, account_name, use_azure_cli (az);"
        " allow_http=true lets a server be spoken to without encryption",
    )
    add.add_argument(
        "--upload-rate",
        metavar="SIZE",
        type=size_bytes,
        default=0,
        help="upload no more than SIZE per second: 500k, 20M",
    )
    add.add_argument(
        "--manual",
        action="store_true",
        help="upload what `remote upload` names, and nothing by itself",
    )
    source = add.add_mutually_exclusive_group()
    source.add_argument(
        "--key-file",
        metavar="PATH",
        default="",
        help="this machine's key; made if it is not there. Default: a file in the data directory",
    )
    source.add_argument(
        "--key-command", metavar="COMMAND", default="", help="prints this machine's key"
    )
    remote_keys.add_openers(add)
    for name, summary in (
        ("test", "try out again what a remote can do"),
        ("rm", "forget a remote; what it holds stays there"),
        ("pause", "upload nothing by itself for now: offline, or where what is sent costs"),
        ("resume", "upload by itself again"),
    ):
        verb(name, summary).add_argument("name", metavar="NAME", help="as it was added")
    verb("list", "list the remotes")
    far_sessions.add_arguments(
        verb("sessions", "list the snapshots in a remote"),
        verb("fetch", "bring a snapshot here from a remote"),
    )
    uploads.add_status_arguments(verb("status", "say what remotes have, what is waiting, and why"))
    uploads.add_upload_arguments(verb("upload", "upload snapshots now, and wait for it"))
    remote_keys.add_arguments(verb("key", "say who can open a remote, and change that"))


def run(given: Namespace) -> int:
    """Do what was typed; the status of ConfigurationError where a remote that was tested cannot be used."""
    return _VERBS[given.verb](given)


def _add(given: Namespace) -> int:
    command = shlex.split(given.key_command)
    kind = HolderKind.COMMAND if command else HolderKind.FILE
    path = str(Path(given.key_file).absolute()) if given.key_file else ""
    remote = Remote(
        given.name,
        given.url,
        dict(given.set),
        upload_rate=given.upload_rate,
        automatic=not given.manual,
        key=KeySource(kind, path, command),
    )
    remote.check()
    found = ask(RemoteVerb.ADD, remote=remote, secret=remote_keys.opener(given))
    if inherited := secrets_in(remote):
        output.warn(
            f"Kernels inherit {', '.join(inherited)} from the environment: prefer a file or a role."
        )
    status = _say(given, found)
    if not given.json:
        remote_keys.show_phrase(found)
    return status


def _test(given: Namespace) -> int:
    return _say(given, ask(RemoteVerb.TEST, given.name))


def _remove(given: Namespace) -> int:
    found = ask(RemoteVerb.REMOVE, given.name)
    if given.json:
        output.say_json({"remotes": found.remotes})
        return 0
    output.say(f"Remote {given.name} is forgotten. What it holds is still there.")
    key = found.remotes[0].remote.key
    if key and key.path:
        output.say(f"Its key is still in {key.path}.")
    return 0


def _pause(given: Namespace) -> int:
    return _paused(given, RemoteVerb.PAUSE, "Nothing is uploaded by itself to remote")


def _resume(given: Namespace) -> int:
    return _paused(given, RemoteVerb.RESUME, "What is waiting is uploaded to remote")


def _paused(given: Namespace, verb: RemoteVerb, done: str) -> int:
    found = ask(verb, given.name)
    if given.json:
        output.say_json({"remotes": found.remotes})
    else:
        output.say(f"{done} {given.name}.")
    return 0


def _list(given: Namespace) -> int:
    found = ask(RemoteVerb.LIST).remotes
    if given.json:
        output.say_json({"remotes": found})
        return 0
    rows = [[one.remote.name, one.remote.url, _state(one), _tried(one)] for one in found]
    output.say(output.table(["REMOTE", "URL", "STATE", "TRIED"], rows) if rows else "No remotes.")
    return 0


_VERBS: dict[str, Callable[[Namespace], int]] = {
    "add": _add,
    "test": _test,
    "list": _list,
    "rm": _remove,
    "sessions": far_sessions.list_sessions,
    "fetch": far_sessions.fetch,
    "pause": _pause,
    "resume": _resume,
    "status": uploads.status,
    "upload": uploads.upload,
    "key": remote_keys.run,
}


def _say(given: Namespace, answer: RemoteAnswer) -> int:
    """Print what remotes were found to be able to do."""
    found = answer.remotes
    if given.json:
        output.say_json(answer)
    for one in found:
        if one.remote.capabilities and not given.json:
            output.say(output.table(["CAPABILITY", ""], _rows(one.remote.capabilities)))
        for warning in one.warnings:
            output.warn(warning)
        for refusal in one.refusals:
            output.warn(f"It cannot be used: {refusal}.")
    return exit_code(ConfigurationError) if any(one.refusals for one in found) else 0


def _rows(found: Capabilities) -> list[list[str]]:
    return [
        ["creates objects without overwriting", _SAID[found.create_only]],
        ["compares and swaps", _SAID[found.compare_and_swap]],
        ["gives parts of objects", _SAID[found.ranges]],
        ["lists what was just written", _SAID[found.lists]],
        ["tells missing from denied", _SAID[found.tells_missing]],
        ["deletes", _SAID[found.deletes]],
        ["keeps old versions", _SAID[found.versioned]],
        ["forbids deletions for a while", _SAID[found.object_lock]],
        ["has rules that delete or move objects", _SAID[found.life_cycle]],
        ["its clock is ahead by", f"{round(found.clock_ahead_seconds)} s"],
    ]


def _state(one: RemoteView) -> str:
    if one.refusals:
        return "cannot be used"
    return f"usable, {len(one.warnings)} warning(s)" if one.warnings else "usable"


def _tried(one: RemoteView) -> str:
    found = one.remote.capabilities
    return output.age(time.time() - found.tried_at) if found else "never"


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        # Not repeated: it may be a secret.
        raise argparse.ArgumentTypeError("it has to be KEY=VALUE")
    return key, value
