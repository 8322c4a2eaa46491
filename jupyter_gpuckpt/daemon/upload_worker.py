"""The process that uploads one snapshot, at the lowest priority; `sending.py` starts it and defines the messages.

python -m jupyter_gpuckpt.daemon.upload_worker      with a socket as standard input
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from ..errors import ObjectCorrupt, error_from, record_of
from ..host import idle_priority
from ..images.workers.messages import receive, send
from ..model import Manifest
from ..store import manifests, packs
from ..store.codecs import decompress
from ..store.far.upload import Uploaded, Uploader
from ..store.packs import Entry
from ..store.places import PLACE, Location, Places
from . import remote_keys
from .sending import Chunk, Ended, Hold, Locate, Located, Progress, Read, Refused, Task


class _Daemon:
    """The daemon at the other end of the socket. Thread-safe."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._one_at_a_time, self._sending = threading.Lock(), threading.Lock()
        self._answers: queue.SimpleQueue[Located | Chunk | Refused] = queue.SimpleQueue()
        self._may_read = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, question: Locate | Read) -> Located | Chunk:
        """Return the answer to a question. Raises the error that it is refused with."""
        with self._one_at_a_time:
            self.tell(question)
            answer = self._answers.get()
        if isinstance(answer, Refused):
            raise error_from(answer.error)
        return answer

    def tell(self, message: Locate | Read | Progress | Ended) -> None:
        """Send a message."""
        with self._sending:
            send(self._connection, message)

    def wait_while_held(self) -> None:
        """Return when nothing runs that a user waits for."""
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
            os._exit(1)  # nobody waits for the rest


class _Source:
    """The snapshot of a task, in a store that the daemon has open. Chunks are read from its packs."""

    def __init__(self, daemon: _Daemon, task: Task) -> None:
        self._daemon, self._task = daemon, task
        self._places: dict[bytes, Location] = {}

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
        """Do nothing: the daemon holds them while this process runs."""
        yield

    def locate(self, digests: Collection[bytes]) -> Places:
        """Return where chunks lie; `pack` is a path."""
        found = self._daemon.ask(Locate(b"".join(digests)))
        if not isinstance(found, Located):
            raise TypeError("another question was answered")
        places = Places([np.frombuffer(found.rows, PLACE)], found.packs)
        self._places.update({place.digest: place for place in places})
        return places

    def read(self, digest: bytes) -> tuple[int, bytes, int]:
        """Return a chunk as it is stored, when the machine is free."""
        self._daemon.wait_while_held()
        place = self._places[digest]
        try:
            payload = packs.read_payload(Path(place.pack), Entry(digest, place.offset, *place[3:]))
        except (ObjectCorrupt, OSError):
            # Its pack may have been written anew; the daemon knows better.
            return self._ask(digest, verified=False)
        return place.codec, payload, place.raw_length

    def load(self, digest: bytes) -> bytes:
        """Return a chunk, decompressed; raise ObjectCorrupt, which names the pack."""
        return decompress(*self._ask(digest, verified=True))

    def _ask(self, digest: bytes, *, verified: bool) -> tuple[int, bytes, int]:
        found = self._daemon.ask(Read(digest, verified))
        if not isinstance(found, Chunk):
            raise TypeError("another question was answered")
        return found.codec, found.payload, found.raw_length


def main(connection: socket.socket) -> None:
    """Do the task that comes by `connection`, and say how it ended."""
    task = receive(connection, Task)
    if task is None:
        return
    daemon = _Daemon(connection)
    try:
        daemon.wait_while_held()
        sent = _upload(daemon, task).sent
        ended = Ended(sent.count_bytes, sent.packs)
    except Exception as error:  # the daemon is told of any
        ended = Ended(error=record_of(error))
    daemon.tell(ended)


def _upload(daemon: _Daemon, task: Task) -> Uploaded:
    data_dir, name = Path(task.data_dir), task.remote.name
    # One that a killed daemon has left behind is about to end.
    with remote_keys.uploading(data_dir, task.remote):
        opened = remote_keys.opened(data_dir, task.remote)
        uploader = Uploader(
            opened.bucket,
            opened.keyring,
            opened.seen,
            state=remote_keys.state_dir(data_dir, name),
            machine_id=remote_keys.machine_id(data_dir),
            upload_rate=task.remote.upload_rate,
        )
        return uploader.upload(
            _Source(daemon, task),
            task.info.snapshot_id,
            task.facts,
            lambda done, total: daemon.tell(Progress(done, total)),
        )


if __name__ == "__main__":
    idle_priority.take()
    main(socket.socket(fileno=0))
