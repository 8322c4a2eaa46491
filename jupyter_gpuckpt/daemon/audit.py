"""The audit log: one line of JSON for each operation, each requested end of a kernel, and each change or export of snapshots.

Each daemon has a file of its own, because machines share homes, and two daemons that rotate one file would lose lines. What rules and
commands remove in a remote is not in it. Lines have ids, sizes and error codes. They have no messages, titles, environments or keys, so
they contain no secret.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from ..wire.protocol import Operation
from .lifetime import PatientHandler

_FILE_BYTES, _OLDER_FILES = 10 << 20, 4
_OLD_SECONDS = 365 * 24 * 3600.0
#: Requests that change snapshots or where they are stored, copy a snapshot, or end a kernel. Not `verify`, which only reads, nor
#: `prune`, which may only list: `removed` has what it removes.
_AUDITED = re.compile(
    r"(?:POST|PUT|PATCH|DELETE) /(?:snapshots|remotes|branches)(?!.*/(?:verify|prune)$)"
    r"|GET /snapshots/[^/]+/export$"
    r"|DELETE /kernels/[^/]+$"
    r"|(?:PUT|DELETE) /kernels/[^/]+/end$"
)

_log = logging.getLogger("jupyter_gpuckpt_audit")


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line. `time`: UTC; `what`: the operation's kind, the request's method and path, or "remove".

    `cause`: why the snapshot was taken (`manifest_records.Cause`). For "remove": "retention", "deletion" (one that can no longer be
    undone), or the rule by which this daemon removed the snapshot from a remote.
    """

    time: str
    host: str
    uid: int
    what: str
    outcome: str
    kernel_id: str = ""
    operation_id: str = ""
    snapshot_id: str = ""
    cause: str = ""
    seconds: float = 0.0
    raw_bytes: int = 0
    new_bytes: int = 0
    error: str = ""


def log_to(folder: Path, place: str) -> None:
    """Write the lines to the file of a place, of at most 10 MiB; five are kept. Remove files in which nothing was written for a year."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in folder.glob("audit-*.jsonl*"):
        with suppress(OSError):  # another daemon was faster
            if old.stat().st_mtime < time.time() - _OLD_SECONDS:
                old.unlink()
    handler = PatientHandler(
        folder / f"audit-{place}.jsonl",
        maxBytes=_FILE_BYTES,
        backupCount=_OLDER_FILES,
        delay=True,
    )
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    # The daemon's own log has its own line for each operation.
    _log.propagate = False


def operation(ended: Operation, *, cause: str) -> None:
    """Write a line for an operation that has ended."""
    result, error = ended.result, ended.error
    _write(
        _entry(
            ended.kind,
            ended.state,
            kernel_id=ended.kernel_id,
            operation_id=ended.operation_id,
            snapshot_id=result.snapshot_id if result else "",
            cause=cause,
            seconds=round(ended.progress.seconds, 3),
            raw_bytes=result.sizes.raw_bytes if result else 0,
            new_bytes=result.sizes.new_bytes if result else 0,
            error=error.code if error else "",
        )
    )


def request(method: str, path: str, status: int) -> None:
    """Write a line for an answered request of the kinds of `_AUDITED`. Its path has ids only."""
    if _AUDITED.match(what := f"{method} {path}"):
        _write(_entry(what, "succeeded" if status < HTTPStatus.BAD_REQUEST else "failed"))


def removed(snapshot_ids: Iterable[str], cause: str) -> None:
    """Write a line for each snapshot that was removed for good."""
    for snapshot_id in snapshot_ids:
        _write(_entry("remove", "succeeded", snapshot_id=snapshot_id, cause=cause))


def _write(entry: _Entry) -> None:
    if _log.handlers:
        _log.info("%s", msgspec.json.encode(entry).decode())


def _entry(what: str, outcome: str, **fields: Any) -> _Entry:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return _Entry(now, socket.gethostname(), os.getuid(), what, outcome, **fields)
