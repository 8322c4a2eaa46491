"""Commands for snapshots besides listing and deleting: notes, pins, verification, archives."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ..errors import ConfigurationError, ObjectCorrupt
from ..wire import calls
from ..wire.progress import ProgressRecord
from ..wire.statuses import exit_code
from . import printing, summary
from .naming import one_snapshot

if TYPE_CHECKING:
    from argparse import Namespace

    from ..client import Client

_PIECE_BYTES = 1 << 20
STANDARD = "-"


def undelete(args: Namespace, client: Client) -> int:
    """Undo deletions of snapshots; of all possible ones if none is named."""
    deleted = client.send(calls.snapshots(deleted=True))
    named = [one_snapshot(text, deleted) for text in args.snapshot]
    wanted = named or [info.snapshot_id for info in deleted]
    back = [client.send(calls.undelete(snapshot_id)) for snapshot_id in wanted]
    if args.json:
        printing.say_json({"snapshots": back})
        return 0
    for info in back:
        printing.say(f"Brought back snapshot {info.snapshot_id}.")
    if not back:
        printing.say("No deletion can be undone any more.")
    return 0


def note(args: Namespace, client: Client) -> int:
    """Change the note or title of a snapshot."""
    if args.text is None and args.title is None:
        raise ConfigurationError(
            "Neither a note nor a title is given.", hint="Give a text, or --title."
        )
    return _annotate(args, client, note=args.text, title=args.title)


def pin(args: Namespace, client: Client) -> int:
    """Pin a snapshot, so that retention keeps it."""
    return _annotate(args, client, pinned=True)


def unpin(args: Namespace, client: Client) -> int:
    """Unpin a snapshot, so that retention may remove it."""
    return _annotate(args, client, pinned=False)


def _annotate(
    args: Namespace,
    client: Client,
    *,
    title: str | None = None,
    note: str | None = None,
    pinned: bool | None = None,
) -> int:
    snapshot_id = one_snapshot(args.snapshot, client.send(calls.snapshots()))
    changed = client.send(calls.annotate(snapshot_id, title=title, note=note, pinned=pinned))
    text = summary.of_snapshot(changed, now=time.time())
    printing.result({"snapshot": changed}, text, as_json=args.json)
    return 0


def verify(args: Namespace, client: Client) -> int:
    """Verify snapshots, all if none is named; return the status of ObjectCorrupt if one is damaged."""
    infos = client.send(calls.snapshots())
    remote = [info.snapshot_id for info in infos if info.remote_only is not None]
    wanted = [one_snapshot(text, infos) for text in args.snapshot]
    if not wanted:
        wanted = [info.snapshot_id for info in infos if info.remote_only is None]
        if remote:
            printing.warn(
                f"Not verified, because only remotes have their content: {', '.join(remote)}."
            )
    found = []
    for snapshot_id in dict.fromkeys(wanted):
        result = client.send(calls.verify(snapshot_id))
        found.append(result)
        if not args.json:
            checked, took = printing.size(result.checked_bytes), printing.duration(result.seconds)
            verdict = f"is whole: {checked} read in {took}." if result.ok else "is damaged:"
            printing.say(f"Snapshot {snapshot_id} {verdict}")
            for problem in result.problems:
                printing.say(f"    {printing.printable(problem)}")
    if args.json:
        printing.say_json({"verifications": found})
    elif not found:
        printing.say("No snapshots.")
    return 0 if all(result.ok for result in found) else exit_code(ObjectCorrupt)


def export(args: Namespace, client: Client) -> int:
    """Write a snapshot to a file or to stdout as an archive; a file appears only when it is complete."""
    snapshot_id = one_snapshot(args.snapshot, client.send(calls.snapshots()))
    to_stdout = args.file == STANDARD
    if to_stdout and (args.json or sys.stdout.isatty()):
        raise ConfigurationError(
            "An archive is written to stdout only if that is a file or a program, and without --json.",
            hint="Name a file, or redirect the output with > or |.",
        )
    with client.export(snapshot_id) as (length, pieces), _target(args.file) as file:
        for piece in _shown("exporting", pieces, length):
            file.write(piece)
    if args.json:
        printing.say_json({"snapshot_id": snapshot_id, "file": args.file, "bytes": length})
    elif not to_stdout:
        printing.say(f"Exported snapshot {snapshot_id}: {printing.size(length)}.")
        printing.warn(
            "It holds everything the kernel had in memory: keep it as you keep passwords."
        )
    return 0


def import_archive(args: Namespace, client: Client) -> int:
    """Import the snapshots of an archive from a file or from stdin."""
    try:
        with _source(args.file) as file:
            length = os.fstat(file.fileno()).st_size
            pieces = iter(lambda: file.read(_PIECE_BYTES), b"")
            brought = client.send(calls.import_archive(_shown("importing", pieces, length)))
    except OSError as error:
        raise ConfigurationError(f"{args.file} cannot be read: {error.strerror}.") from error
    if args.json:
        printing.say_json({"snapshots": brought})
    else:
        for info in brought:
            printing.say(f"Imported snapshot {summary.of_snapshot(info, now=time.time())}.")
    return 0


@contextmanager
def _target(name: str) -> Iterator[BinaryIO]:
    """Yield a file with mode 0600 that is renamed to its final name when it is complete; stdout for `-`."""
    if name == STANDARD:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(name)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(unfinished, flags, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be written: {error.strerror}.") from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


@contextmanager
def _source(name: str) -> Iterator[BinaryIO]:
    if name == STANDARD:
        yield sys.stdin.buffer
    else:
        with Path(name).open("rb") as file:
            yield file


def _shown(title: str, pieces: Iterator[bytes], length: int) -> Iterator[bytes]:
    """Yield `pieces` and show their progress on a terminal; `length` 0: unknown."""
    began, done = time.monotonic(), 0
    with printing.ProgressBar(title) as bar:
        for piece in pieces:
            yield piece
            done += len(piece)
            seconds = time.monotonic() - began
            bar.show(ProgressRecord("", done, length or None, seconds))
