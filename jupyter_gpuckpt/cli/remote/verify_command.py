"""The command `jupyter gpuckpt remote verify`: a drill that fetches a sample of a remote and keeps nothing of it."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace

from ...errors import GpuCkptError
from ...wire.plurals import counted
from ...wire.remote_records import Drill, RemoteVerb
from ...wire.statuses import exit_code
from .. import printing
from .key_command import ask

_MAX_SNAPSHOTS = 100_000


def add_arguments(to: ArgumentParser) -> None:
    """Add the arguments of `remote verify`."""
    to.add_argument("name", metavar="NAME", help="the remote's name")
    to.add_argument(
        "--sample",
        metavar="N",
        type=_count,
        default=10,
        help="fetch N chunks of each of N snapshots. Default: 10",
    )


def run(args: Namespace) -> int:
    """Fetch a sample and compare it with its digests; return 1 if any of it is damaged."""
    answer = ask(RemoteVerb.VERIFY, args.name, sample=args.sample)
    found = answer.drill or Drill()
    if args.json:
        printing.say_json({"remote": args.name, "drill": found})
    else:
        _say(found)
    return exit_code(GpuCkptError) if found.damaged else 0


def _say(found: Drill) -> None:
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
