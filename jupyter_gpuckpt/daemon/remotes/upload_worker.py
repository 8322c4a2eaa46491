"""The process that works with a remote: it uploads a snapshot, gives an upload up, sends changes of snapshots, or collects.

It has the lowest priority unless a user waits or this machine goes soon. `sending.py` starts it and defines the messages.

python -m jupyter_gpuckpt.daemon.remotes.upload_worker      with a socket as standard input
"""

from __future__ import annotations

import logging
import os
import queue
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from ...errors import ObjectCorrupt, error_from, record_of
from ...host import idle_priority
from ...images.worker_messages import receive, send
from ...linux.fresh_memory import Scratch
from ...remote import collector, epochs
from ...remote.remote_list import state_folder
from ...remote.request_errors import of_the_whole_remote
from ...remote.retries import Retries
from ...remote.seen import Seen
from ...remote.upload import Uploader
from ...store import manifests, packs
from ...store.codecs import decompress
from ...store.index.places import PLACE, Places
from ...store.packs import RECORD_BYTES, Entry
from ...wire.manifest_records import Manifest
from ...wire.snapshot_records import RemoteCollection, Traffic
from . import amending, remote_keys
from .sending import (
    Amend,
    AnyTask,
    Chunk,
    Collect,
    Ended,
    GiveUp,
    Hold,
    Locate,
    Located,
    Progress,
    Read,
    Refused,
    Said,
    Task,
    Trouble,
)

#: The most bytes that are read at a time, if the chunk is not longer, and the largest gap between chunks that is read with them.
_SPAN_BYTES, _GAP_BYTES = 4 << 20, 256 << 10


class Answering(Protocol):
    """A connection to the daemon, which has the store open."""

    def ask(self, question: Locate | Read) -> Located | Chunk:
        """Return the answer to a request. Raises the error with which it is refused."""

    def wait_while_held(self) -> None:
        """Wait while the upload is paused."""


class _Daemon:
    """The daemon at the other end of the socket. Thread-safe."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._one_at_a_time, self._sending = threading.Lock(), threading.Lock()
        self._answers: queue.SimpleQueue[Located | Chunk | Refused] = queue.SimpleQueue()
        self._may_read = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, question: Locate | Read) -> Located | Chunk:
        """Send a request and return its answer. Raises the error with which it is refused."""
        with self._one_at_a_time:
            self.tell(question)
            answer = self._answers.get()
        if isinstance(answer, Refused):
            raise error_from(answer.error)
        return answer

    def tell(self, message: Locate | Read | Progress | Trouble | Said | Ended) -> None:
        """Send a message."""
        with self._sending:
            send(self._connection, message)

    def wait_while_held(self) -> None:
        """Wait while the daemon has paused the upload."""
        if not self._may_read.is_set():
            self._may_read.wait()

    def _listen(self) -> None:
        try:
            while True:
                message = receive(self._connection, Hold, Located, Chunk, Refused)
                if isinstance(message, Located | Chunk | Refused):
                    self._answers.put(message)
                elif not isinstance(message, Hold):
                    return
                elif message.on:
                    self._may_read.clear()
                else:
                    self._may_read.set()
        finally:
            os._exit(1)  # the daemon has closed the socket


class _ToDaemon(logging.Handler):
    """A handler that sends warnings to the daemon's log."""

    def __init__(self, daemon: _Daemon) -> None:
        super().__init__(logging.WARNING)
        self._daemon = daemon

    def emit(self, record: logging.LogRecord) -> None:
        """Send a log record to the daemon."""
        self._daemon.tell(Said(record.getMessage()))


class _Span:
    """Neighboring records in a pack, from `start` to `end`, which are read together."""

    def __init__(self, path: str, start: int) -> None:
        self.path, self.start, self.end = path, start, start


class _LastSpan(threading.local):
    """The span that a thread has read last."""

    def __init__(self) -> None:
        self.span: _Span | None = None
        self.memory = Scratch()
        self.records = memoryview(b"")

    def read(self, span: _Span) -> memoryview:
        """Return the bytes of a span, fewer if the pack ends before or is gone. Raises OSError."""
        if self.span is not span:
            self.span = None
            memory = self.memory.get(span.end - span.start)
            self.records = memory[: packs.read_span(Path(span.path), span.start, memory)]
            self.span = span
        return self.records


class Source:
    """The snapshot of a task, in a store that the daemon has open. Chunks are read from its packs.

    Neighbors are read together: with a read for each chunk the threads would wait longer for the GIL.
    """

    def __init__(self, daemon: Answering, task: Task) -> None:
        self._daemon, self._task = daemon, task
        #: The span of each chunk, and where it lies in the pack.
        self._places: dict[bytes, tuple[_Span, Entry]] = {}
        self._last = _LastSpan()

    def manifest(self, snapshot_id: str) -> Manifest:
        """Return the manifest with its annotations."""
        path = manifests.path_of(Path(), snapshot_id)
        found = manifests.parse(path, self._task.content, Manifest)
        return msgspec.structs.replace(found, info=self._task.info)

    def manifest_file(self, snapshot_id: str) -> bytes:
        """Return the content of the manifest's file."""
        return self._task.content

    @contextmanager
    def holding(self, digests: Collection[bytes]) -> Iterator[None]:
        """Do nothing: the daemon holds the chunks while this process runs."""
        yield

    def locate(self, digests: Collection[bytes]) -> Places:
        """Return the locations of chunks; `pack` is a path."""
        found = self._daemon.ask(Locate(b"".join(digests)))
        if not isinstance(found, Located):
            raise TypeError("another question was answered")
        places = Places([np.frombuffer(found.rows, PLACE)], found.packs)
        self._places.update(zip(places.digests, self._spans(places), strict=True))
        return places

    def _spans(self, places: Places) -> Iterator[tuple[_Span, Entry]]:
        """Yield the span and the entry of each chunk. Rows of a table are slow to read one by one, hence the lists."""
        packs, span, last = places.rows["pack"].tolist(), _Span("", 0), -1
        for pack, entry in zip(packs, places.entries(), strict=True):
            start, end = entry.offset - RECORD_BYTES, entry.offset + entry.stored_length
            if pack != last or start - span.end > _GAP_BYTES or end - span.start > _SPAN_BYTES:
                span, last = _Span(places.packs[pack], start), pack
            span.end = end
            yield span, entry

    def read(self, digest: bytes) -> tuple[int, bytes | memoryview, int]:
        """Return a chunk in its stored form; wait while the upload is paused.

        The payload is valid until this thread reads another chunk.
        """
        self._daemon.wait_while_held()
        span, entry = self._places[digest]
        try:
            start = entry.offset - RECORD_BYTES - span.start
            payload = packs.payload_in(Path(span.path), self._last.read(span), start, entry)
        except (ObjectCorrupt, OSError):
            # The pack may have been repacked; the daemon has the new location.
            return self._ask(digest, verified=False)
        return entry.codec, payload, entry.raw_length

    def load(self, digest: bytes) -> bytes:
        """Return a chunk, decompressed; raise ObjectCorrupt, which names the pack."""
        return decompress(*self._ask(digest, verified=True))

    def _ask(self, digest: bytes, *, verified: bool) -> tuple[int, bytes, int]:
        found = self._daemon.ask(Read(digest, verified))
        if not isinstance(found, Chunk):
            raise TypeError("another question was answered")
        return found.codec, found.payload, found.raw_length


def main(connection: socket.socket) -> None:
    """Receive a task by `connection`, carry it out, and report its end."""
    task = receive(connection, Task, GiveUp, Amend, Collect)
    if not isinstance(task, AnyTask):
        return
    if not (_is_urgent(task) or (isinstance(task, Task) and task.is_awaited)):
        idle_priority.take()
    daemon = _Daemon(connection)
    logging.getLogger().addHandler(_ToDaemon(daemon))
    try:
        daemon.wait_while_held()
        ended = _done(daemon, task)
    except Exception as error:  # every error is reported to the daemon
        ended = Ended(error=record_of(error))
    daemon.tell(ended)


def _is_urgent(task: AnyTask) -> bool:
    return isinstance(task, Task) and task.is_urgent


def _done(daemon: _Daemon, task: AnyTask) -> Ended:
    data_dir = Path(task.data_dir)
    if isinstance(task, Collect):
        return Ended(collected=_collected(data_dir, task))
    # This waits for the worker of a killed daemon, which is about to end.
    with remote_keys.uploading(data_dir, task.remote):
        retries = Retries(
            tell=lambda error: daemon.tell(Trouble(record_of(error) if error else None))
        )
        with of_the_whole_remote():
            opened = remote_keys.opened(data_dir, task.remote, retries)
        if isinstance(task, Amend):
            return Ended(amended=amending.amend(data_dir, opened, task.changes))
        uploader = Uploader(
            opened.bucket,
            opened.key,
            opened.seen,
            state=state_folder(data_dir, opened.remote.name),
            machine_id=opened.machine_id,
            upload_rate=0 if _is_urgent(task) else opened.remote.upload_rate,
            ahead_seconds=opened.remote.clock_ahead_seconds,
        )
        if isinstance(task, GiveUp):
            uploader.give_up(task.snapshot_id)
            return Ended()
        began = time.monotonic()
        uploaded = uploader.upload(
            Source(daemon, task),
            task.info.snapshot_id,
            task.facts,
            lambda done, total: daemon.tell(Progress(done, total)),
            tenure=task.tenure,
            term=task.term,
        )
        traffic = Traffic(opened.bucket.sent_bytes, time.monotonic() - began)
        sent = uploaded.sent
        return Ended(sent.count_bytes, sent.packs, traffic, is_new=uploaded.is_new)


def _collected(data_dir: Path, task: Collect) -> RemoteCollection:
    """Collect in a remote, without its lock: uploads go on meanwhile."""
    remote, now = task.remote, time.time()
    opened = remote_keys.opened(data_dir, remote)
    if not opened.may_write:
        return RemoteCollection(now)
    epoch = opened.bucket.head(epochs.NAME)
    there = now + remote.clock_ahead_seconds
    if epoch is not None and there - epoch.modified.timestamp() < task.interval_seconds:
        return RemoteCollection(now)
    with tempfile.TemporaryDirectory(prefix="gpuckpt-") as folder:
        # A copy of what was seen: if the remote is removed meanwhile, its state must not be written again.
        seen = Path(folder) / "seen.json"
        with suppress(FileNotFoundError):
            shutil.copyfile(state_folder(data_dir, remote.name) / seen.name, seen)
        found = collector.collect(opened.bucket, opened.key.seal, Seen(seen))
    return RemoteCollection(now, now, found.removed, found.freed_bytes, found.condemned)


if __name__ == "__main__":
    main(socket.socket(fileno=0))
