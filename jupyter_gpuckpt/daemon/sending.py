"""An upload as the daemon sees it: a process at the lowest priority does it, and asks here for what only the store's owner knows.

The process reads packs by itself; where a chunk lies, and a chunk that has moved meanwhile, it asks for. It ends with its
socket: when it is stopped, and when this process is killed. What it has sent by then is in its journal (`store/far/journal.py`).
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from ..errors import (
    ErrorRecord,
    GpuCkptError,
    OperationCancelled,
    StoreUnavailable,
    error_from,
    record_of,
)
from ..host import commands
from ..images.workers.messages import receive, send
from ..model import SnapshotInfo
from ..remote_records import Remote
from ..store import manifests
from ..store.codecs import DIGEST_BYTES
from ..store.far.sessions import Facts
from ..store.far.upload import Sent
from ..store.local import LocalStore


class Task(msgspec.Struct, frozen=True, tag=True):
    """What is to be uploaded. `content`: the manifest's file; `info`: with the annotations of today."""

    data_dir: str
    remote: Remote
    facts: Facts
    info: SnapshotInfo
    content: bytes


class Hold(msgspec.Struct, frozen=True, tag=True):
    """Whether somebody else is to have the machine for now."""

    on: bool


class Located(msgspec.Struct, frozen=True, tag=True):
    """Where chunks lie: rows of `places.PLACE`, and the paths of the packs that they number."""

    rows: bytes
    packs: list[str]


class Chunk(msgspec.Struct, frozen=True, tag=True):
    """A chunk as it is stored."""

    codec: int
    payload: bytes
    raw_length: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Why a question has no answer."""

    error: ErrorRecord


class Locate(msgspec.Struct, frozen=True, tag=True):
    """Asks where these chunks lie, whose digests follow each other."""

    digests: bytes


class Read(msgspec.Struct, frozen=True, tag=True):
    """Asks for a chunk; `verified`: one that is damaged is refused, with the name of its pack."""

    digest: bytes
    verified: bool


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Bytes that the remote has taken, and how many it will."""

    done: int
    total: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The end of the upload."""

    count_bytes: int = 0
    packs: int = 0
    error: ErrorRecord | None = None


#: Says what a remote is to know of a snapshot, from it and from what Jupyter keeps with its kernel.
FactsOf = Callable[[SnapshotInfo, dict[str, Any]], Facts]


class Sending:
    """One upload of one snapshot. `run` belongs to a thread, the rest to any."""

    def __init__(self, data_dir: Path, remote: Remote, snapshot_id: str) -> None:
        self._data_dir, self._remote, self._snapshot_id = data_dir, remote, snapshot_id
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._is_stopped = self._is_held = False

    def run(
        self, store: LocalStore, facts_of: FactsOf, progress: Callable[[int, int], None]
    ) -> Sent:
        """Upload the snapshot. `progress` is told bytes done and in all.

        Raises SnapshotNotFound, OperationCancelled after `stop`, StoreUnavailable, and what `Uploader.upload` raises.
        """
        manifest = store.manifest(self._snapshot_id)
        task = Task(
            str(self._data_dir),
            self._remote,
            facts_of(manifest.info, manifest.launch.jupyter),
            manifest.info,
            store.manifest_file(self._snapshot_id),
        )
        with store.holding(manifests.references(manifest)):
            ours, theirs = socket.socketpair()
            with ours, self._worker(theirs):
                try:
                    self._connect(ours, task)
                    return self._serve(ours, store, progress)
                except OSError as error:
                    raise self._cut_off() from error
                finally:
                    with self._lock:
                        self._connection = None

    def hold(self, *, on: bool) -> None:
        """Have the upload wait before it reads another chunk, or go on. May block as long as the process reads nothing."""
        with self._lock:
            if on is not self._is_held:
                self._is_held = on
                self._tell_held()

    def stop(self) -> None:
        """Make `run` raise OperationCancelled; return at once."""
        # Without the lock, whose holder may wait for a process that nobody gives any time.
        self._is_stopped = True
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _worker(self, theirs: socket.socket) -> Iterator[None]:
        command = [sys.executable, "-P", "-m", f"{__package__}.upload_worker"]
        try:
            with theirs:
                # With everything that is in the environment: credentials may be.
                process = commands.spawn(command, stdin=theirs.fileno(), env=os.environ)
        except commands.CommandFailed as error:
            raise StoreUnavailable(f"The upload could not be started: {error}") from error
        try:
            yield
        finally:
            commands.stop(process)

    def _connect(self, ours: socket.socket, task: Task) -> None:
        with self._lock:
            self._connection = ours
            if self._is_stopped:
                raise self._cut_off()
            send(ours, task)
            self._tell_held()

    def _tell_held(self) -> None:
        if self._connection is not None:
            with suppress(OSError):  # it has ended; `run` says why
                send(self._connection, Hold(self._is_held))

    def _serve(
        self, ours: socket.socket, store: LocalStore, progress: Callable[[int, int], None]
    ) -> Sent:
        """Answer the process's questions until it has ended."""
        while True:
            message = receive(ours, Locate, Read, Progress, Ended)
            if isinstance(message, Progress):
                progress(message.done, message.total)
            elif isinstance(message, Locate | Read):
                found = _answer(store, message)
                with self._lock:
                    send(ours, found)
            elif isinstance(message, Ended):
                if message.error:
                    raise error_from(message.error)
                return Sent(message.count_bytes, message.packs)
            else:
                raise self._cut_off()

    def _cut_off(self) -> GpuCkptError:
        if self._is_stopped:
            return OperationCancelled("The upload was stopped.")
        return StoreUnavailable(
            "The process that uploaded was ended.", hint="What was uploaded is kept."
        )


def _answer(store: LocalStore, asked: Locate | Read) -> Located | Chunk | Refused:
    try:
        if isinstance(asked, Read):
            if asked.verified:
                store.load(asked.digest)
            return Chunk(*store.read(asked.digest))
        wanted = asked.digests
        starts = range(0, len(wanted), DIGEST_BYTES)
        found = store.locate([wanted[start : start + DIGEST_BYTES] for start in starts])
        return Located(found.rows.tobytes(), [str(store.path_of(pack)) for pack in found.packs])
    except GpuCkptError as error:
        return Refused(record_of(error))
