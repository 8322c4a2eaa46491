"""The process that removes the objects of a remote that nothing there needs any more, at the lowest priority.

It may be killed at any moment. `far_collecting.py` starts it.

python -m jupyter_gpuckpt.daemon.far_collector      with a socket as standard input
"""

from __future__ import annotations

import logging
import shutil
import socket
import tempfile
import time
from pathlib import Path

import msgspec

from ..errors import GpuCkptError, record_of
from ..host import idle_priority
from ..images.workers.messages import receive, send
from ..remote_records import Remote
from ..snapshot_records import FarCollection
from ..store.far import collect, epochs
from ..store.far.retries import Retries
from ..store.far.seen import Seen
from . import remote_keys


class Task(msgspec.Struct, frozen=True, tag=True):
    """A task to collect in a remote, unless any machine did so within `interval_seconds`."""

    data_dir: str
    remote: Remote
    interval_seconds: float


class Done(msgspec.Struct, frozen=True, tag=True):
    """The answer to a task."""

    collection: FarCollection


def collected(task: Task) -> FarCollection:
    """Carry out a task; return its result, which contains the error if it failed."""
    now = time.time()
    try:
        return _collected(task, now)
    except GpuCkptError as error:
        return FarCollection(looked_at=now, error=record_of(error))


def _collected(task: Task, now: float) -> FarCollection:
    data_dir, remote = Path(task.data_dir), task.remote
    opened = remote_keys.opened(data_dir, remote, Retries.while_somebody_waits())
    bucket, seal = opened.bucket, opened.keyring.seal
    if opened.keyring.public.only_machine not in {"", remote_keys.machine_id(data_dir)}:
        return FarCollection(looked_at=now)
    ahead = remote.capabilities.clock_ahead_seconds if remote.capabilities else 0.0
    epoch = bucket.head(epochs.NAME)
    if epoch is not None and now + ahead - epoch.modified.timestamp() < task.interval_seconds:
        return FarCollection(looked_at=now)
    with tempfile.TemporaryDirectory(prefix="gpuckpt-") as folder:
        # The collector works on a copy: if the remote is removed meanwhile, its state must not be written again.
        known = Path(folder) / "seen.json"
        source = remote_keys.state_dir(data_dir, remote.name) / known.name
        if source.exists():
            shutil.copyfile(source, known)
        found = collect.collect(bucket, seal, Seen(known))
    traffic = bucket.counter.traffic
    return FarCollection(now, now, *found, traffic.reads, traffic.writes, traffic.received_bytes)


def main(connection: socket.socket) -> None:
    """Receive a task by `connection`, carry it out, and answer."""
    idle_priority.take()
    task = receive(connection, Task)
    logging.getLogger().setLevel(logging.CRITICAL)
    if isinstance(task, Task):
        send(connection, Done(collected(task)))


if __name__ == "__main__":
    main(socket.socket(fileno=0))
