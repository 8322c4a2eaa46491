"""The audit log: a file of its own with one line of JSON for each operation on a kernel and each change of snapshots.

Lines have ids, sizes and error codes. They have no messages, titles, environments or keys, so they contain no secret.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

import msgspec

from ..protocol import Operation

_FILE_BYTES, _OLDER_FILES = 10 << 20, 4
#: Requests below these paths change snapshots, or where they are stored.
_AUDITED = ("/snapshots", "/remotes", "/branches")
#: Such requests that only read.
_READS = ("verify", "changes")

_log = logging.getLogger("jupyter_gpuckpt_audit")


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line. `time`: UTC; `what`: the operation's kind, or the request's method and path."""

    time: str
    uid: int
    what: str
    outcome: str
    kernel_id: str = ""
    operation_id: str = ""
    snapshot_id: str = ""
    automatic: bool = False
    seconds: float = 0.0
    raw_bytes: int = 0
    new_bytes: int = 0
    error: str = ""


def log_to(path: Path) -> None:
    """Write the lines to a file of at most 10 MiB; five are kept."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(
        path, maxBytes=_FILE_BYTES, backupCount=_OLDER_FILES, delay=True
    )
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    # The daemon's own log has its own line for each operation.
    _log.propagate = False


def operation(ended: Operation, *, is_automatic: bool) -> None:
    """Write a line for an operation that has ended."""
    result, error = ended.result, ended.error
    _write(
        _Entry(
            _now(),
            os.getuid(),
            ended.kind,
            ended.state,
            kernel_id=ended.kernel_id,
            operation_id=ended.operation_id,
            snapshot_id=result.snapshot_id if result else "",
            automatic=is_automatic,
            seconds=round(ended.progress.seconds, 3),
            raw_bytes=result.sizes.raw_bytes if result else 0,
            new_bytes=result.sizes.new_bytes if result else 0,
            error=error.code if error else "",
        )
    )


def request(method: str, path: str, status: int) -> None:
    """Write a line for an answered request if it changes snapshots. Its path has ids only."""
    if method == "GET" or not path.startswith(_AUDITED) or path.endswith(_READS):
        return
    outcome = "succeeded" if status < HTTPStatus.BAD_REQUEST else "failed"
    _write(_Entry(_now(), os.getuid(), f"{method} {path}", outcome))


def _write(entry: _Entry) -> None:
    # A handler reports a full disk on standard error and raises nothing.
    if _log.handlers:
        _log.info("%s", msgspec.json.encode(entry).decode())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
