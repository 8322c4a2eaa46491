"""The process that removes the objects of a remote that nothing there needs any more, at the lowest priority.

It may be killed at any moment. `collecting.py` starts it.

python -m jupyter_gpuckpt.daemon.remotes.collector_process      with a socket as standard input
"""

from __future__ import annotations

import logging
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import GpuCkptError, record_of
from ...host import idle_priority
from ...images.worker_messages import receive, send
from ...remote import collector, epochs
from ...remote.remote_list import state_folder
from ...remote.retries import Retries
from ...remote.seen import Seen
from ...wire.remote_records import Remote
from ...wire.snapshot_records import RemoteCollection
from . import remote_keys
from .collector_messages import Task


def collected(task: Task) -> RemoteCollection:
    """Carry out a task; return its result, which contains the error if it failed."""
    now = time.time()
    try:
        return _collected(task, now)
    except GpuCkptError as error:
        return RemoteCollection(looked_at=now, error=record_of(error))


def _collected(task: Task, now: float) -> RemoteCollection:
    data_dir, remote = Path(task.data_dir), task.remote
    opened = remote_keys.opened(data_dir, remote, Retries.while_somebody_waits())
    bucket, seal = opened.bucket, opened.key.seal
    if opened.key.public.only_machine not in {"", remote_keys.machine_id(data_dir)}:
        return RemoteCollection(looked_at=now)
    ahead = remote.capabilities.clock_ahead_seconds if remote.capabilities else 0.0
    epoch = bucket.head(epochs.NAME)
    if epoch is not None and now + ahead - epoch.modified.timestamp() < task.interval_seconds:
        return RemoteCollection(looked_at=now)
    with _seen(data_dir, remote) as seen:
        found = collector.collect(bucket, seal, seen)
    return RemoteCollection(now, now, found.removed, found.freed_bytes, found.condemned)


@contextmanager
def _seen(data_dir: Path, remote: Remote) -> Iterator[Seen]:
    """Yield a copy of what was seen of a remote: if it is removed meanwhile, its state must not be written again."""
    with tempfile.TemporaryDirectory(prefix="gpuckpt-") as folder:
        known = Path(folder) / "seen.json"
        source = state_folder(data_dir, remote.name) / known.name
        if source.exists():
            shutil.copyfile(source, known)
        yield Seen(known)


def main(connection: socket.socket) -> None:
    """Receive a task by `connection`, carry it out, and answer."""
    idle_priority.take()
    task = receive(connection, Task)
    logging.getLogger().setLevel(logging.CRITICAL)
    if isinstance(task, Task):
        send(connection, collected(task))


if __name__ == "__main__":
    main(socket.socket(fileno=0))
