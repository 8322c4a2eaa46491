"""The message of the daemon to the process that removes what a remote does not need (`collector_process.py`)."""

from __future__ import annotations

import msgspec

from ...wire.remote_records import Remote


class Task(msgspec.Struct, frozen=True):
    """A task to collect in a remote, unless any machine did so within `interval_seconds`."""

    data_dir: str
    remote: Remote
    interval_seconds: float
