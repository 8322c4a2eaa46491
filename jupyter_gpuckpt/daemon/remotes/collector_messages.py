"""The messages between the daemon and the process that removes what a remote does not need (`collector_process.py`)."""

from __future__ import annotations

import msgspec

from ...wire.remote_records import Remote
from ...wire.snapshot_records import FarCollection


class Task(msgspec.Struct, frozen=True, tag=True):
    """A task to collect in a remote, unless any machine did so within `interval_seconds`."""

    data_dir: str
    remote: Remote
    interval_seconds: float


class Done(msgspec.Struct, frozen=True, tag=True):
    """The answer to a task. `dropped`: the ids of the snapshots that the remote's rule removed, by session.

    `rule`: the generation of that rule; 0 without one.
    """

    collection: FarCollection
    dropped: dict[str, list[str]] = {}
    rule: int = 0
