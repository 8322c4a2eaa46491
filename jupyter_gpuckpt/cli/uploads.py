"""Implements what `jupyter gpuckpt remote` does with uploads: how they stand, and those that are wanted now."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from .. import calls
from ..errors import RemoteNotFound, SnapshotNotFound, error_from
from ..progress import ProgressRecord
from ..snapshot_records import RemoteUploads, Upload, UploadState
from . import output
from .daemon_calls import daemon
from .ids import one_snapshot

if TYPE_CHECKING:
    from ..client import Client

_LOOK_SECONDS = 0.2
_NUMBERS = frozenset({"UPLOADED", "WAITING", "FAILED"})


def add_status_arguments(to: ArgumentParser) -> None:
    """What can be typed after `remote status`."""
    to.add_argument("name", metavar="NAME", nargs="?", default="", help="of one remote; else all")


def add_upload_arguments(to: ArgumentParser) -> None:
    """What can be typed after `remote upload`."""
    to.add_argument("name", metavar="NAME", help="of the remote")
    to.add_argument(
        "snapshot", metavar="SNAPSHOT", nargs="+", help="their ids, or the beginnings of them"
    )


def status(given: Namespace) -> int:
    """Say what remotes have, what is waiting, and why."""
    with daemon() as client:
        found = client.send(calls.uploads())
    if given.name:
        found = [one for one in found if one.remote == given.name]
        if not found:
            raise RemoteNotFound(
                f"There is no remote {given.name!r}.",
                hint="`jupyter gpuckpt remote list` lists them.",
            )
    if given.json:
        output.say_json({"remotes": found})
        return 0
    heads = ["REMOTE", "UPLOADED", "WAITING", "FAILED", "LAST UPLOAD", "STATE"]
    rows = list(map(_row, found))
    output.say(output.table(heads, rows, right=_NUMBERS) if rows else "No remotes.")
    for remote in found:
        for failed in remote.failed:
            output.warn(
                f"Snapshot {failed.snapshot_id} was not uploaded to {remote.remote}: {failed.error.message}"
            )
    return 0


def upload(given: Namespace) -> int:
    """Upload snapshots now, and wait until the remote has them."""
    with daemon() as client:
        known = [info.snapshot_id for info in client.send(calls.snapshots())]
        wanted = list(dict.fromkeys(one_snapshot(prefix, known) for prefix in given.snapshot))
        client.send(calls.upload(given.name, wanted))
        try:
            _follow(client, given.name, wanted)
        except KeyboardInterrupt:
            output.warn("The upload goes on; `jupyter gpuckpt remote status` shows how far it is.")
            raise
    if given.json:
        output.say_json({"remote": given.name, "uploaded": wanted})
        return 0
    for snapshot_id in wanted:
        output.say(f"Remote {given.name} has snapshot {snapshot_id}.")
    return 0


def in_words(uploads: list[Upload]) -> str:
    """To which remotes a snapshot went, for lists: `team, other 40 %`."""
    return ", ".join(map(_upload_in_words, uploads)) or "-"


def _upload_in_words(one: Upload) -> str:
    if one.state is UploadState.UPLOADED:
        return one.remote
    if one.state is UploadState.UPLOADING:
        return f"{one.remote} {one.done_bytes / max(1, one.total_bytes):.0%}"
    return f"{one.remote} {one.state.value}"


def _follow(client: Client, remote: str, wanted: list[str]) -> None:
    """Show how far uploads are until all are there; raise the error of the first that is not uploaded now."""
    began = time.monotonic()
    with output.ProgressBar("uploading") as bar:
        while True:
            uploads = _uploads(client, remote, wanted)
            for one in uploads:
                if one.error:
                    raise error_from(one.error)
            if all(one.state is UploadState.UPLOADED for one in uploads):
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
    found = [one for snapshot_id in wanted for one in infos[snapshot_id].uploads]
    uploads = [one for one in found if one.remote == remote]
    if len(uploads) < len(wanted):
        raise RemoteNotFound(f"Remote {remote} was removed meanwhile.")
    return uploads


def _row(one: RemoteUploads) -> list[str]:
    now = time.time()
    waiting = str(one.waiting)
    if one.waiting_bytes:
        waiting += f", at most {output.size(one.waiting_bytes)}"
    last = output.age(now - one.last_uploaded_at) if one.last_uploaded_at else "never"
    state = _state(one, now)
    return [one.remote, str(one.uploaded), waiting, str(len(one.failed)), last, state]


def _state(one: RemoteUploads, now: float) -> str:
    words = []
    if one.uploading:
        words.append(f"uploading {one.uploading[: output.SHORT_ID]}")
    if one.paused:
        words.append("paused")
    if not one.automatic:
        words.append("by hand only")
    if one.trouble:
        words.append(one.trouble.message)
        if one.retry_at:
            words.append(f"again in {output.duration(max(0.0, one.retry_at - now))}")
    return ", ".join(words) or "up to date" * (not one.waiting)
