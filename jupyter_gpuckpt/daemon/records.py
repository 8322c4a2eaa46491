"""The records of kernels on disk, by which the next daemon finds them.

Covers: one JSON file per kernel, written atomically; which daemon a record belongs to, since homes are shared between
machines and containers; what a record means after its daemon was killed. Does not cover: what a kernel does (`kernels.py`).

    state/kernels/<kernel_id>/record.json   environment and connection key: 0600, never logged
    state/exits/<kernel_id>-<word>          wait statuses, written by init (or by a kill)
    state/places/<place>.lock               held by the daemon of that place for its life; its mtime is a heartbeat
    state/takeover.lock                     held while records change hands
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from .. import decoding
from ..engine.tree.tree import Tree
from ..errors import (
    ConfigurationError,
    DaemonUnavailable,
    ErrorRecord,
    KernelLost,
    StoreFull,
    StoreUnavailable,
    is_disk_full,
    record_of,
)
from ..ids import is_id
from ..model import Cause, LaunchSpec, Sizes, SnapshotInfo
from ..place import Place
from ..protocol import Owner
from ..states import ALIVE, KernelState

#: The heartbeat of a place whose lock is free: when it is older than this, nobody will start that daemon again. Before,
#: the server beside it may be doing just that, and its kernels may be running where they cannot be seen from here.
ABANDONED_SECONDS = 60.0
#: A provisioner reads the exit file within moments of the end; this is for one that was asleep.
KEEP_EXITS_SECONDS = 7 * 24 * 3600.0

_UNFINISHED = ".unfinished-"

_log = logging.getLogger(__name__)


class KernelRecord(msgspec.Struct):
    """Record of a kernel on disk. `since`: when it entered `state` (seconds since the epoch); `previous`: the state before it."""

    spec: LaunchSpec
    owner: Owner
    place: Place
    state: KernelState = KernelState.STARTING
    previous: KernelState = KernelState.STARTING
    since: float = 0.0
    name: str = ""
    jupyter: dict[str, Any] = {}
    tree: Tree | None = None
    exit_path: str = ""
    snapshot_id: str = ""
    #: What that snapshot weighs, and how long it took to take.
    sizes: Sizes = Sizes()
    saved_seconds: float = 0.0
    cause: Cause = Cause.MANUAL
    #: When it is killed because its user has shut it down (seconds since the epoch); 0: not.
    ends_at: float = 0.0
    #: The snapshot of another kernel that it was made from; empty: it was launched.
    parent_snapshot_id: str = ""
    moved_ports: dict[int, int] = {}
    error: ErrorRecord | None = None

    @property
    def kernel_id(self) -> str:
        """Return the id of the record's kernel."""
        return self.spec.kernel_id


class Records:
    """Directory of records, as the daemon of `place` sees it. Thread-safe as far as files are."""

    def __init__(self, state_dir: Path, place: Place) -> None:
        self._state, self._place = state_dir, place
        self._lock = -1
        for name in ("kernels", "exits", "places"):
            (state_dir / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    def hold(self) -> None:
        """Become the daemon of this place for these records; raise DaemonUnavailable if there is one already."""
        path = self._lock_path(self._place)
        self._lock = _lock_file(path)
        if self._lock < 0:
            raise DaemonUnavailable(
                "Another daemon of this place uses the data directory through another runtime directory.",
                hint="Use the same JUPYTER_GPUCKPT_RUNTIME_DIR everywhere.",
            )
        self._sweep()

    def beat(self) -> None:
        """Write the heartbeat of this daemon, at least every 20 s."""
        os.utime(self._lock_path(self._place))

    def release(self) -> None:
        """Give up the records: another daemon may take over suspended kernels at once."""
        self._lock_path(self._place).unlink(missing_ok=True)
        os.close(self._lock)

    def new_exit_path(self, kernel_id: str) -> Path:
        """Return a new path for each start of a process, so that an old status is never taken for a new one."""
        return self._state / "exits" / f"{kernel_id}-{secrets.token_hex(4)}"

    def write(self, kernel_id: str, encoded: bytes) -> None:
        """Replace a record (`msgspec.json.encode` of it); on return it survives a power cut. StoreFull, StoreUnavailable."""
        path = self._path(kernel_id)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_file(path, encoded)
        except OSError as error:
            raise (StoreFull if is_disk_full(error) else StoreUnavailable)(
                f"The daemon's state cannot be written: {error.strerror}: {path}",
                hint="Make room in the data directory, or choose another one.",
            ) from error

    def forget(self, kernel_id: str) -> None:
        """Remove a record; its snapshots stay."""
        path = self._path(kernel_id)
        path.unlink(missing_ok=True)
        with suppress(OSError):
            path.parent.rmdir()

    def all(self) -> list[KernelRecord]:
        """Read the records of all places, oldest first; log and skip one that cannot be read."""
        return sorted(self._read(), key=lambda record: record.since)

    def mine(self) -> list[KernelRecord]:
        """Return the records of this place."""
        with self._handing_over():
            return [record for record in self.all() if record.place == self._place]

    def of_others(self) -> list[KernelRecord]:
        """Return the records of other places."""
        return [record for record in self.all() if record.place != self._place]

    def take_over(self, wanted: Callable[[KernelRecord], bool]) -> list[KernelRecord]:
        """Make the `wanted` records of other places ours, where their daemon is gone, and return them.

        A running kernel of another machine or container cannot be seen from here, so it is taken only when its daemon left
        or has not been seen for `ABANDONED_SECONDS`; a suspended one has no process and is taken at once.
        """
        taken = []
        with self._handing_over():
            for record in self.all():
                if record.place != self._place and wanted(record) and self._orphaned(record):
                    record.place = self._place
                    self.write(record.kernel_id, msgspec.json.encode(record))
                    taken.append(record)
        return taken

    def _orphaned(self, record: KernelRecord) -> bool:
        path = self._lock_path(record.place)
        if not path.exists():
            return True
        lock = _lock_file(path)
        if lock < 0:
            return False
        os.close(lock)
        with suppress(FileNotFoundError):
            return (
                record.state is KernelState.SUSPENDED
                or self._place.sees_processes_of(record.place)
                or time.time() - path.stat().st_mtime > ABANDONED_SECONDS
            )
        return True

    def _read(self) -> Iterator[KernelRecord]:
        for path in (self._state / "kernels").glob("*/record.json"):
            try:
                record = decoding.from_json(path.read_bytes(), KernelRecord)
            except FileNotFoundError:  # forgotten meanwhile
                continue
            except (OSError, msgspec.DecodeError) as error:
                # The text of a DecodeError names fields and types, not values.
                _log.error("the record %s cannot be read: %s", path, error)
                continue
            if record.kernel_id == path.parent.name:
                yield record
            else:
                _log.error("the record %s is that of another kernel", path)

    @contextmanager
    def _handing_over(self) -> Iterator[None]:
        lock = os.open(self._state / "takeover.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _sweep(self) -> None:
        """Remove exit files that nobody will read, and what a daemon that was killed was just writing."""
        for path in (self._state / "kernels").glob(f"*/{_UNFINISHED}*"):
            with suppress(OSError):  # another place's daemon may be writing right now
                if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                    path.unlink()
                    path.parent.rmdir()
        kept = {record.exit_path for record in self.all()}
        for path in (self._state / "exits").iterdir():
            with suppress(FileNotFoundError):
                old = time.time() - path.stat().st_mtime > KEEP_EXITS_SECONDS
                if old and str(path) not in kept:
                    path.unlink()

    def _lock_path(self, place: Place) -> Path:
        return self._state / "places" / f"{place.key}.lock"

    def _path(self, kernel_id: str) -> Path:
        return self._state / "kernels" / kernel_id / "record.json"


def check_kernel_id(kernel_id: str) -> None:
    """Raise ConfigurationError for an id that cannot be the name of a directory."""
    if not is_id(kernel_id):
        raise ConfigurationError(
            f"Not a usable kernel id: {kernel_id!r}",
            hint="Use at most 128 letters, digits, '_', '-' and '.'; a UUID is best.",
        )


def recovered(
    record: KernelRecord, *, alive: bool, snapshots: Sequence[SnapshotInfo]
) -> KernelRecord | None:
    """Return what becomes of a record whose daemon is gone; None: the kernel ended and is forgotten.

    `alive`: its init still runs. `snapshots`: those of this kernel, newest first. Changes and returns `record`.
    """
    committed = next((info for info in snapshots if info.created >= record.since), None)
    ended = not alive and bool(record.exit_path) and Path(record.exit_path).exists()
    parked = alive and record.state is KernelState.PARKED
    if parked or record.state in {KernelState.SUSPENDED, KernelState.LOST}:
        return record
    if record.state is KernelState.RESUMING:
        # The new process tree is known only when a resume is complete; the snapshot is untouched.
        return _became(record, record.previous)
    if record.state is KernelState.STARTING or ended:
        return None
    if record.state is KernelState.SUSPENDING and committed and committed.reason == "suspend":
        record.snapshot_id, record.cause = committed.snapshot_id, committed.cause
        record.sizes, record.saved_seconds = committed.sizes, committed.seconds
        return _became(record, KernelState.SUSPENDED)
    if not alive:
        record.error = record_of(lost())
        return _became(record, KernelState.LOST)
    if record.state is KernelState.SAVING and committed:
        record.snapshot_id = committed.snapshot_id
        record.sizes, record.saved_seconds = committed.sizes, committed.seconds
    return _became(record, KernelState.RUNNING)


def as_before(record: KernelRecord) -> KernelState:
    """Return the state of a kernel after an operation that neither stopped nor started it."""
    parked = record.previous is KernelState.PARKED
    return KernelState.PARKED if parked else KernelState.RUNNING


def lost() -> KernelLost:
    """Return the error of a kernel that ended without an exit status."""
    return KernelLost(
        "The kernel's process is gone and left no exit status.",
        hint="Resume it from its last snapshot, or restart it.",
    )


def write_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: a reader sees the old or the new content, also after a power cut."""
    temporary = path.with_name(f"{_UNFINISHED}{path.name}.{secrets.token_hex(4)}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _became(record: KernelRecord, state: KernelState) -> KernelRecord:
    record.previous, record.state, record.since = record.state, state, time.time()
    if state not in ALIVE:
        record.tree = None
    return record


def _lock_file(path: Path) -> int:
    """Return a descriptor that holds the lock on `path` until it is closed, or -1 if another process holds it."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return -1
        # Its last holder may have removed it between our open and our lock.
        if path.exists() and os.fstat(fd).st_ino == path.stat().st_ino:
            return fd
        os.close(fd)
