"""The daemon's side of the process that works with a remote: it uploads, sends changes, and collects.

Unless a user waits for its work, it has the lowest priority.

An upload asks the daemon what the open store knows: the locations of chunks, and chunks that were moved meanwhile. The process reads packs
by itself. It ends when its socket is closed: when the task is stopped, or when the daemon is killed. The journal of an upload records what
was sent (`remote/upload_progress.py`).
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import (
    ErrorRecord,
    GpuCkptError,
    OperationCancelled,
    StoreUnavailable,
    error_from,
    record_of,
)
from ...host import commands, own_programs
from ...images.worker_messages import receive, send
from ...remote.listed_facts import Amendment, Told, told
from ...remote.remote_sessions import MAX_TEXT_CHARACTERS, Facts, Tenure
from ...store import manifests
from ...store.codecs import DIGEST_BYTES
from ...wire.manifest_records import SnapshotInfo
from ...wire.remote_records import Remote
from ...wire.snapshot_records import RemoteCollection, Traffic
from .amending import Amended

if TYPE_CHECKING:
    from ...store.local import LocalStore

_log = logging.getLogger(__name__)


class _AtRemote(msgspec.Struct, frozen=True):
    """The remote of a task, and the data directory that lists it."""

    data_dir: str
    remote: Remote


class Task(_AtRemote, frozen=True, tag=True):
    """A task to upload a snapshot. `content`: the manifest's file; `info`: with the current annotations.

    `tenure`: the lease of its remote session, which is checked when the snapshot is listed there.
    """

    facts: Facts
    info: SnapshotInfo
    content: bytes
    #: Whether this machine goes soon: at full rate, and at the usual priority.
    is_urgent: bool = False
    #: Whether a user waits for it: at the usual priority.
    is_awaited: bool = False
    tenure: Tenure | None = None
    #: The term of the session in which the snapshot was made.
    term: int = 0


class GiveUp(_AtRemote, frozen=True, tag=True):
    """A task to give up an upload whose snapshot is gone."""

    snapshot_id: str


class Amend(_AtRemote, frozen=True, tag=True):
    """A task to send changes of snapshots that the remote has."""

    changes: list[Amendment]


class Collect(_AtRemote, frozen=True, tag=True):
    """A task to collect in the remote, unless any machine did so within `interval_seconds`."""

    interval_seconds: float


class Hold(msgspec.Struct, frozen=True, tag=True):
    """An order to pause the upload, because a user waits for other work, or to continue it."""

    on: bool


class Located(msgspec.Struct, frozen=True, tag=True):
    """The locations of chunks: rows of `places.PLACE`, and the paths of the packs to which they refer by number."""

    rows: bytes
    packs: list[str]


class Chunk(msgspec.Struct, frozen=True, tag=True):
    """A chunk in its stored form."""

    codec: int
    payload: bytes
    raw_length: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The error of a request that has no answer."""

    error: ErrorRecord


class Locate(msgspec.Struct, frozen=True, tag=True):
    """A request for the locations of chunks, by their concatenated digests."""

    digests: bytes


class Read(msgspec.Struct, frozen=True, tag=True):
    """A request for a chunk. `verified`: a damaged chunk is refused with an error that names its pack."""

    digest: bytes
    verified: bool


class Progress(msgspec.Struct, frozen=True, tag=True):
    """A report of the bytes that the remote has received, and of their total."""

    done: int
    total: int


class Trouble(msgspec.Struct, frozen=True, tag=True):
    """A report of the error for which a request is retried; None when it has succeeded in the end."""

    error: ErrorRecord | None


class Said(msgspec.Struct, frozen=True, tag=True):
    """A warning for the log."""

    text: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The end of a task. `amended`, `collected`: its results."""

    count_bytes: int = 0
    packs: int = 0
    traffic: Traffic = Traffic()
    error: ErrorRecord | None = None
    amended: Amended = Amended()
    collected: RemoteCollection = RemoteCollection()
    #: Whether the remote did not list the snapshot before the upload.
    is_new: bool = True


AnyTask = Task | GiveUp | Amend | Collect
#: A callback for progress: (bytes that the remote has received, total bytes).
OnProgress = Callable[[int, int], None]
#: A callback for the remote's current error; None when it works again.
OnTrouble = Callable[[ErrorRecord | None], None]


_Answers = Callable[[Locate | Read], Located | Chunk | Refused]


def _nothing(asked: Locate | Read) -> Refused:
    return Refused(record_of(TypeError(f"{type(asked).__name__} has no answer here")))


class Sending:
    """One task of the process. `run`, `give_up`, `amend` or `collect` is called in one thread, the other methods in any."""

    def __init__(
        self,
        data_dir: Path,
        remote: Remote,
        snapshot_id: str = "",
        *,
        is_urgent: bool = False,
        is_awaited: bool = False,
    ) -> None:
        self._data_dir, self._remote, self._snapshot_id = data_dir, remote, snapshot_id
        self._is_urgent, self.is_awaited = is_urgent, is_awaited
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._is_stopped = self._is_held = False
        #: What the upload sent about the snapshot; None if it listed the snapshot before.
        self.told: Told | None = None

    def run(
        self,
        store: LocalStore,
        progress: OnProgress,
        trouble: OnTrouble = lambda error: None,
        *,
        session_id: str = "",
        tenure: Tenure | None = None,
        term: int = 0,
    ) -> Ended:
        """Upload the snapshot to remote session `session_id`, by default that of `facts_of`. `tenure` and `term`: as in `Task`.

        Raises SessionLost, SnapshotNotFound, OperationCancelled after `stop`, StoreUnavailable, and what `Uploader.upload` raises.
        """
        manifest = store.manifest(self._snapshot_id)
        facts = facts_of(manifest.info, manifest.launch.jupyter)
        task = Task(
            str(self._data_dir),
            self._remote,
            msgspec.structs.replace(facts, session_id=session_id or facts.session_id),
            manifest.info,
            store.manifest_file(self._snapshot_id),
            self._is_urgent,
            self.is_awaited,
            tenure,
            term,
        )
        with store.stubs.using(self._snapshot_id), store.holding(manifests.references(manifest)):
            done = self._done(task, lambda asked: answer(store, asked), progress, trouble)
        self.told = told(manifest.info) if done.is_new else None
        return done

    def give_up(self, trouble: OnTrouble = lambda error: None) -> None:
        """Remove the objects that an upload left whose snapshot is gone. Raises as `run` and `Uploader.give_up` do."""
        task = GiveUp(str(self._data_dir), self._remote, self._snapshot_id)
        self._done(task, trouble=trouble)

    def amend(self, changes: list[Amendment], trouble: OnTrouble = lambda error: None) -> Amended:
        """Send changes of snapshots to the remote. Raises as `run` does."""
        task = Amend(str(self._data_dir), self._remote, changes)
        return self._done(task, trouble=trouble).amended

    def collect(self, interval_seconds: float) -> RemoteCollection:
        """Remove what nothing in the remote needs, as `Collect` says. Raises as `run` does."""
        task = Collect(str(self._data_dir), self._remote, interval_seconds)
        return self._done(task).collected

    def hold(self, *, on: bool) -> None:
        """Pause the upload before it reads another chunk (`on`), or continue it. May block while the process reads no messages."""
        with self._lock:
            if on is not self._is_held:
                self._is_held = on
                self._tell_held()

    def stop(self) -> None:
        """Make `run` raise OperationCancelled; return at once."""
        # This does not acquire the lock, because its holder may wait for a process that gets no CPU time.
        self._is_stopped = True
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _worker(self, theirs: socket.socket) -> Iterator[None]:
        try:
            with theirs:
                # The process gets the whole environment, because it may contain credentials.
                process = own_programs.spawn(f"{__package__}.upload_worker", stdin=theirs.fileno())
        except commands.CommandFailed as error:
            raise StoreUnavailable(
                f"The process for remote {self._remote.name} could not be started: {error}"
            ) from error
        try:
            yield
        finally:
            commands.stop(process)

    def _done(
        self,
        task: AnyTask,
        answer: _Answers = _nothing,
        progress: OnProgress = lambda done, total: None,
        trouble: OnTrouble = lambda error: None,
    ) -> Ended:
        ours, theirs = socket.socketpair()
        with ours, self._worker(theirs):
            try:
                self._connect(ours, task)
                return self._serve(ours, answer, progress, trouble)
            except OSError as error:
                raise self._cut_off() from error
            finally:
                with self._lock:
                    self._connection = None

    def _connect(self, ours: socket.socket, task: AnyTask) -> None:
        with self._lock:
            self._connection = ours
            if self._is_stopped:
                raise self._cut_off()
            send(ours, task)
            self._tell_held()

    def _tell_held(self) -> None:
        if self._connection is not None:
            with suppress(OSError):  # the process has ended; `run` raises the cause
                send(self._connection, Hold(self._is_held))

    def _serve(
        self,
        ours: socket.socket,
        answer: _Answers,
        progress: OnProgress,
        trouble: OnTrouble,
    ) -> Ended:
        """Answer the process's requests until it has ended."""
        while True:
            message = receive(ours, Locate, Read, Progress, Trouble, Said, Ended)
            if isinstance(message, Progress):
                progress(message.done, message.total)
            elif isinstance(message, Trouble):
                trouble(message.error)
            elif isinstance(message, Said):
                _log.warning("%s", message.text)
            elif isinstance(message, Locate | Read):
                found = answer(message)
                with self._lock:
                    send(ours, found)
            elif isinstance(message, Ended):
                if message.error:
                    raise error_from(message.error)
                return message
            else:
                raise self._cut_off()

    def _cut_off(self) -> GpuCkptError:
        if self._is_stopped:
            return OperationCancelled("The task was stopped.")
        return StoreUnavailable(
            f"The process for remote {self._remote.name} was killed.",
            hint="What was uploaded is kept.",
        )


def answer(store: LocalStore, asked: Locate | Read) -> Located | Chunk | Refused:
    """Return the answer to a request of the process that uploads."""
    try:
        if isinstance(asked, Read):
            if asked.verified:
                store.load(asked.digest)
            codec, payload, raw_length = store.read(asked.digest)
            return Chunk(codec, bytes(payload), raw_length)
        wanted = asked.digests
        starts = range(0, len(wanted), DIGEST_BYTES)
        found = store.locate([wanted[start : start + DIGEST_BYTES] for start in starts])
        return Located(found.rows.tobytes(), [str(store.path_of(pack)) for pack in found.packs])
    except GpuCkptError as error:
        return Refused(record_of(error))


def facts_of(info: SnapshotInfo, jupyter: dict[str, Any]) -> Facts:
    """Return the facts that remotes list about a snapshot, so that its notebook is found there.

    They come from its record and from what Jupyter keeps with its kernel (`LaunchSpec.jupyter`). Unknown ones are left out, never
    guessed: a kernel without a notebook has no path, one without a server (a script's) neither user nor server. The remote session's id is
    the kernel's, which is the same on every machine (but see `LeaseFile.branch`).
    """

    def known(name: str) -> str:
        found = jupyter.get(name)
        return found[:MAX_TEXT_CHARACTERS] if isinstance(found, str) else ""

    return Facts(
        session_id=info.kernel_id,
        hub_user=known("hub_user"),
        server_name=known("server_name"),
        path=known("path"),
        title=info.title[:MAX_TEXT_CHARACTERS],
        host_name=info.host_name[:MAX_TEXT_CHARACTERS],
    )
