"""The commands `jupyter gpuckpt remote status` and `remote upload`."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from ...errors import RemoteNotFound, SnapshotNotFound, error_from
from ...wire import calls
from ...wire.plurals import counted
from ...wire.progress import ProgressRecord
from ...wire.snapshot_records import RemoteUploads, Snapshot, Upload, UploadState
from .. import printing
from ..daemon_calls import daemon
from ..naming import one_snapshot
from ..parser import Parser

if TYPE_CHECKING:
    from ...client import Client

_LOOK_SECONDS = 0.2
_NUMBERS = frozenset({"UPLOADED", "WAITING", "FAILED"})


def add_status_arguments(to: ArgumentParser) -> None:
    """Add the arguments of `remote status`."""
    to.add_argument("name", metavar="NAME", nargs="?", default="", help="the remote; default: all")


def add_upload_arguments(to: Parser) -> None:
    """Add the arguments of `remote upload`."""
    to.add_argument("name", metavar="NAME", help="the remote's name")
    to.snapshot("+")


def status(args: Namespace) -> int:
    """Show the snapshots that remotes have and those that wait, with the reasons."""
    with daemon() as client:
        found = client.send(calls.uploads())
    if args.name:
        found = [one for one in found if one.remote == args.name]
        if not found:
            raise RemoteNotFound(
                f"There is no remote {args.name!r}.",
                hint="`jupyter gpuckpt remote list` lists them.",
            )
    if args.json:
        printing.say_json({"remotes": found})
        return 0
    heads = ["REMOTE", "UPLOADED", "WAITING", "FAILED", "LAST UPLOAD", "STATE"]
    rows = list(map(_row, found))
    printing.say(printing.table(heads, rows, right=_NUMBERS) if rows else "No remotes.")
    for remote in found:
        for line in _collected(remote):
            printing.note(line)
    for remote in found:
        for failed in remote.failed:
            printing.warn(
                f"Snapshot {failed.snapshot_id} was not uploaded to {remote.remote}: {failed.error.message}"
            )
    return 0


def upload(args: Namespace) -> int:
    """Upload snapshots now, and wait until the remote has them."""
    with daemon(waits=True) as client:
        known = client.send(calls.snapshots())
        wanted = list(dict.fromkeys(one_snapshot(text, known) for text in args.snapshot))
        client.send(calls.upload(args.name, wanted))
        try:
            follow(client, args.name, wanted)
        except KeyboardInterrupt:
            printing.warn(
                "The upload continues; `jupyter gpuckpt remote status` shows its progress."
            )
            raise
    if args.json:
        printing.say_json({"remote": args.name, "uploaded": wanted})
        return 0
    for snapshot_id in wanted:
        printing.say(f"Remote {args.name} has snapshot {snapshot_id}.")
    return 0


def as_text(info: Snapshot) -> str:
    """Format a snapshot's remotes for lists: `team, other 40 %`; `team, not here` if only they have its content."""
    parts = list(map(_upload_as_text, info.uploads))
    if info.remote_only is not None:
        parts = [*(parts or [info.remote_only or "unknown"]), "not here"]
    return ", ".join(parts) or "-"


def _upload_as_text(upload: Upload) -> str:
    if upload.state is UploadState.UPLOADED:
        return upload.remote
    if upload.state is UploadState.UPLOADING:
        return f"{upload.remote} {upload.done_bytes / max(1, upload.total_bytes):.0%}"
    return f"{upload.remote} {upload.state.value}"


def follow(client: Client, remote: str, wanted: list[str]) -> None:
    """Show the progress of uploads until all are done; raise the error of the first that fails."""
    began = time.monotonic()
    with printing.ProgressBar("uploading") as bar:
        while True:
            uploads = _uploads(client, remote, wanted)
            for one in uploads:
                if one.error:
                    raise error_from(one.error)
            states = [one.state for one in uploads]
            if states == [UploadState.UPLOADED] * len(wanted):
                return
            done = sum(one.done_bytes for one in uploads)
            total = sum(one.total_bytes for one in uploads)
            bar.show(ProgressRecord("", done, total or None, time.monotonic() - began))
            time.sleep(_LOOK_SECONDS)


def _uploads(client: Client, remote: str, wanted: list[str]) -> list[Upload]:
    infos = {info.snapshot_id: info for info in client.send(calls.snapshots())}
    for snapshot_id in wanted:
        if snapshot_id not in infos:
            raise SnapshotNotFound(f"Snapshot {snapshot_id} was deleted meanwhile.")
    ways = [(one, way) for one in wanted for way in infos[one].uploads if way.remote == remote]
    if missing := set(wanted).difference(one for one, _ in ways):
        if all(one.name != remote for one in client.send(calls.remotes())):
            raise RemoteNotFound(f"Remote {remote} was removed meanwhile.")
        # A new daemon does not know the requests to its predecessor.
        client.send(calls.upload(remote, [one for one in wanted if one in missing]))
    return [way for _, way in ways]


def _collected(uploads: RemoteUploads) -> list[str]:
    """Format the last removal of unneeded packs from a remote; no lines before the first one."""
    found, name = uploads.collected, uploads.remote
    lines = []
    if found.at:
        age, freed = printing.age(time.time() - found.at), printing.size(found.freed_bytes)
        lines.append(
            f"{name}: {counted(found.removed, 'unneeded pack')} ({freed}) removed {age}, {found.condemned} may be removed the next time."
        )
    if found.error:
        lines.append(
            f"{name}: Packs that nothing needs could not be removed: {found.error.message}"
        )
    return lines


def _row(uploads: RemoteUploads) -> list[str]:
    now = time.time()
    waiting = str(uploads.waiting)
    if uploads.waiting_bytes:
        waiting += f", at most {printing.size(uploads.waiting_bytes)}"
    last = printing.age(now - uploads.last_uploaded_at) if uploads.last_uploaded_at else "never"
    state = _state(uploads, now)
    return [uploads.remote, str(uploads.uploaded), waiting, str(len(uploads.failed)), last, state]


def _state(uploads: RemoteUploads, now: float) -> str:
    parts = []
    if uploads.uploading:
        parts.append(f"uploading {uploads.uploading[: printing.SHORT_ID]}")
    if uploads.paused:
        parts.append("paused")
    if not uploads.automatic:
        parts.append("manual only")
    if uploads.deletions:
        parts.append(f"{counted(uploads.deletions, 'deletion')} to be carried out")
    if uploads.trouble:
        parts.append(uploads.trouble.message)
        if uploads.retry_at:
            parts.append(f"again in {printing.duration(max(0.0, uploads.retry_at - now))}")
    return ", ".join(parts) or ("waiting" if uploads.waiting else "up to date")
