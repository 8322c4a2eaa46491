"""The records of kernels on disk, by which the next daemon finds them.

Covers: one JSON file per kernel, written atomically; which daemon a record belongs to, since machines and containers may share
a home; who may take it over. Does not cover: what a kernel does (`kernels.py`), what a record means after its daemon was killed
(`recovered.py`).

    state/kernels/<kernel_id>/record.json   environment and connection key: 0600, never logged
    state/exits/<kernel_id>-<word>          wait statuses, written by init (or by a kill)
    state/kernels/<kernel_id>/branch-<place>.json   the record of a kernel that runs on here although another daemon has taken it over
    state/shared/                           leases: which daemon may write a record (record_leases.py)
    state/places/<place>.lock               a lock that the daemon of that place holds for its whole life
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ...engine.tree.tree import Tree
from ...errors import (
    DaemonUnavailable,
    ErrorRecord,
    GpuCkptError,
    SessionHeld,
    SessionLost,
    StoreError,
    StoreFull,
    StoreUnavailable,
    is_disk_full,
)
from ...linux.disk_reserve import with_room
from ...linux.file_locks import is_locked, lock_or_refuse
from ...linux.shared_folders import file_system_of, locks_reach_all
from ...wire import decoding
from ...wire.deadlines import Deadline
from ...wire.manifest_records import Cause, LaunchSpec, Sizes
from ...wire.place import Place
from ...wire.protocol import Owner, OwnerKind
from ...wire.states import KernelState
from .record_leases import RecordLeases, held
from .whole_files import UNFINISHED, write_file

#: States of kernels that any host may resume.
_AT_REST = frozenset({KernelState.SUSPENDED, KernelState.LOST})
_ENDING = _AT_REST | {KernelState.SUSPENDING}
#: How long a daemon may take to release the lease of a kernel that it has suspended.
_RELEASE_SECONDS, _PAUSE = 1.0, 0.02
#: The age at which an unfinished file that no process writes counts as abandoned.
_ABANDONED_SECONDS = 60.0
#: How long exit files are kept, and how many in any case. A provisioner reads one within moments of the end, unless its machine was
#: suspended.
_KEEP_EXITS_SECONDS, _KEEP_EXITS = 7 * 24 * 3600.0, 100

_log = logging.getLogger(__name__)


class KernelRecord(msgspec.Struct):
    """The record of a kernel on disk. `previous`: the state before `state`.

    `since`: when it entered `state` (seconds since the epoch). A resume that fails leaves it as it was.
    """

    spec: LaunchSpec
    owner: Owner
    place: Place
    state: KernelState = KernelState.STARTING
    previous: KernelState = KernelState.STARTING
    since: float = 0.0
    #: `since` before the resume that runs.
    since_before: float = 0.0
    #: When `error` was noted (seconds since the epoch); 0: there is none.
    failed_at: float = 0.0
    name: str = ""
    jupyter: dict[str, Any] = {}
    tree: Tree | None = None
    exit_path: str = ""
    snapshot_id: str = ""
    #: The snapshot that the last save or suspend makes, or has made: its id is chosen before the first step.
    making: str = ""
    #: The highest number of its snapshots, as far as this record knows.
    number: int = 0
    #: The sizes of that snapshot, and the duration of its save.
    sizes: Sizes = Sizes()
    saved_seconds: float = 0.0
    cause: Cause = Cause.MANUAL
    #: When it is killed because its user has shut it down.
    ends: Deadline = Deadline()
    #: The snapshot of another kernel from which it was branched; empty: it was launched.
    parent_snapshot_id: str = ""
    moved_ports: dict[int, int] = {}
    error: ErrorRecord | None = None
    #: That another machine has taken its session over, in a sentence, until a user has chosen where its notebook is saved.
    taken_over: str = ""
    #: When it changed for the first time after its last snapshot (seconds since the epoch); 0: not known, or it did not.
    changed_at: float = 0.0
    #: How long after that its server saves it; 0: as its owner says.
    autosave_seconds: float = 0.0
    #: The remote to which it was moved for another machine, until it is resumed here; empty: it was not.
    moved_to: str = ""
    #: The ports, besides its own, on which it listened when it was suspended.
    listening: list[int] = []
    #: The working folder that a branch has for itself; empty: it has that of its launch.
    own_folder: str = ""
    #: The directory in the working folder with the former files while a resume replaces them, and until its record is on the disk.
    restoring: str = ""

    @property
    def kernel_id(self) -> str:
        """Return the id of the record's kernel."""
        return self.spec.kernel_id


class Records:
    """The directory of records, as seen by the daemon of `place`. Thread-safe."""

    def __init__(self, state_dir: Path, place: Place) -> None:
        self.state_dir, self.place = state_dir, place
        for name in ("kernels", "exits", "places", "shared"):
            (state_dir / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._locks = _PlaceLocks(state_dir / "places", place)
        self._leases = RecordLeases(state_dir, place)
        self._mutex = threading.RLock()
        #: Kernels that run here as branches: their records belong to another daemon.
        self._branches: set[str] = set()
        #: Those of them that `lost` has not returned yet.
        self._lost: dict[str, SessionLost] = {}

    @property
    def exits(self) -> Path:
        """The folder of wait statuses."""
        return self.state_dir / "exits"

    def hold(self) -> None:
        """Lock the records for the daemon of this place. Raises DaemonUnavailable if another daemon has the lock."""
        self._locks.hold()
        kept = {record.exit_path for record in self.all()}
        _remove_leftovers(self.state_dir / "kernels", self.exits, kept)
        with self._mutex:
            self._leases.sweep()

    def beat(self) -> None:
        """Write the heartbeat of this daemon; call this at least every 20 s. An error is logged, and the next call tries again."""
        try:
            with self._mutex:
                lost = self._leases.beat()
        except (OSError, GpuCkptError) as error:
            _log.warning("the heartbeat in %s cannot be written: %s", self.state_dir, error)
            return
        for kernel_id, reason in lost.items():
            self._become_branch(kernel_id, reason)

    def lost(self) -> dict[str, SessionLost]:
        """Return the kernels that have become branches since the last call, with the reason for each."""
        with self._mutex:
            found, self._lost = self._lost, {}
        return found

    def release(self) -> None:
        """Release the lock: another daemon may take over suspended kernels at once."""
        with self._mutex:
            self._leases.end()
        self._locks.release()

    def new_exit_path(self, kernel_id: str) -> Path:
        """Return a new path for each start of a process, so that an old status is never mistaken for a new one."""
        return self.exits / f"{kernel_id}-{secrets.token_hex(4)}"

    def write(
        self, kernel_id: str, encoded: bytes, state: KernelState = KernelState.RUNNING
    ) -> None:
        """Write a record durably in its encoded form, with the kernel's lease if the kernel has a process.

        Raises SessionHeld or SessionLost if the kernel belongs to another daemon; StoreFull, StoreUnavailable.
        """
        with self._mutex:
            if kernel_id not in self._branches:
                was_held = self._leases.is_held(kernel_id)
                try:
                    self._write_leased(kernel_id, encoded, state)
                except SessionLost as error:
                    if not was_held:
                        raise
                    self._become_branch(kernel_id, error)
                else:
                    return
            self._replace(self._branch_path(kernel_id), encoded)

    def forget(self, kernel_id: str) -> None:
        """Remove a record, unless it belongs to another daemon now; the kernel's snapshots stay."""
        with self._mutex:
            path = self._path(kernel_id)
            if kernel_id in self._branches:
                self._branches.discard(kernel_id)
                self._branch_path(kernel_id).unlink(missing_ok=True)
            elif self._leases.knows(kernel_id):
                try:
                    with self._leases.checked(kernel_id):
                        path.unlink(missing_ok=True)
                        self._leases.forget(kernel_id)
                except SessionLost as error:
                    _log.warning("%s", error)
                    self._leases.leave(kernel_id)
            elif self._is_mine(kernel_id):
                path.unlink(missing_ok=True)
            with suppress(OSError):
                path.parent.rmdir()

    def all(self) -> list[KernelRecord]:
        """Read the records of all places, oldest first; log and skip one that cannot be read."""
        return sorted(self._read(), key=lambda record: record.since)

    def mine(self) -> list[KernelRecord]:
        """Return the records of this place, whose previous daemon has ended, and get their leases."""
        found = list(self._read(name=f"branch-{self.place.key}.json"))
        with self._mutex:
            self._branches.update(record.kernel_id for record in found)
            for record in self.all():
                if record.place == self.place and record.kernel_id not in self._branches:
                    try:
                        self._leases.inherit(record.kernel_id)
                    except SessionHeld as error:
                        _log.warning("%s", error)
                    else:
                        found.append(record)
        return found

    def claim(self, kernel_id: str) -> None:
        """Get the lease of a kernel of this place whose record on the disk is missing, damaged or outdated. Raises SessionHeld."""
        with self._mutex:
            on_disk = self._of(kernel_id)
            if on_disk is not None and on_disk.place != self.place:
                self._branches.add(kernel_id)
            elif not self._leases.knows(kernel_id):
                self._leases.inherit(kernel_id)

    def of_others(self) -> list[KernelRecord]:
        """Return the records of other places."""
        return [one for one in self.all() if one.place != self.place]

    def moved(self) -> list[str]:
        """Return the suspended kernels of this daemon that another one has taken over, and drop them."""
        with self._mutex:
            found = [one for one in self._leases.moved() if not self._caught_up(one)]
            for kernel_id in found:
                self._leases.leave(kernel_id)
        return found

    def take_over(
        self, wanted: Callable[[KernelRecord], bool], bring: Callable[[KernelRecord], None]
    ) -> list[KernelRecord]:
        """Transfer the `wanted` records of other places to this one if their daemons have ended or released them; return them.

        `bring`: copies a record's snapshots from another daemon's store before the record is transferred. May raise StoreError.
        """
        taken = []
        for record in self.of_others():
            if wanted(record):
                try:
                    taken.append(self._taken(record, wanted, bring, is_asked=False))
                except (SessionHeld, SessionLost) as error:
                    _log.debug("%s", error)
                except StoreError as error:
                    _log.warning("kernel %s is not taken over: %s", record.kernel_id, error)
        return taken

    def take(self, kernel_id: str, bring: Callable[[KernelRecord], None]) -> KernelRecord | None:
        """Transfer a kernel's record to this place because a user asks for it; None if there is no such record.

        A suspended kernel is taken even if its server still runs. Raises SessionHeld, and what `bring` raises.
        """
        deadline = time.monotonic() + _RELEASE_SECONDS
        while True:
            found = self._of(kernel_id)
            if not found or found.place == self.place or found.owner.kind is not OwnerKind.SERVER:
                return None
            try:
                return self._taken(found, lambda record: True, bring, is_asked=True)
            except SessionHeld:
                # Its daemon may have suspended it just now, and be about to release the lease.
                if time.monotonic() > deadline or found.state not in _ENDING:
                    raise
            time.sleep(_PAUSE)

    def _taken(
        self,
        record: KernelRecord,
        wanted: Callable[[KernelRecord], bool],
        bring: Callable[[KernelRecord], None],
        *,
        is_asked: bool,
    ) -> KernelRecord:
        kernel_id, place = record.kernel_id, record.place
        with self._mutex:
            if self._leases.knows(kernel_id) or kernel_id in self._branches:
                raise held(kernel_id, "is already on this machine", "Try again.")
            self._leases.take(kernel_id, self._require_left(record, is_asked=is_asked))
        try:
            # The record is read again, because its daemon may have written it until the lease was taken.
            now = self._of(kernel_id)
            if now is None or now.place != place or not wanted(now):
                raise held(kernel_id, "was changed on another machine just now", "Try again.")
            bring(now)  # without `_mutex`, because it may take long
            now.place = self.place
            if is_asked:
                now.owner = msgspec.structs.replace(now.owner, pid=0, start_time=0.0)
            with self._mutex:
                self._write_leased(kernel_id, msgspec.json.encode(now), KernelState.RUNNING)
        except BaseException:
            with self._mutex:
                with suppress(StoreError):
                    self._leases.release(kernel_id)
                self._leases.leave(kernel_id)
            raise
        return now

    def _require_left(self, record: KernelRecord, *, is_asked: bool) -> set[str]:
        """Raise SessionHeld if a record's daemon has not released it; return the places whose daemons are known to have ended."""
        kernel_id, place = record.kernel_id, record.place
        session = self._leases.session(kernel_id)
        is_at_rest = record.state in _AT_REST
        is_locked = self._locks.is_held(place)
        if is_locked:
            has_left = is_asked or not record.owner.pid
            if not (session and session.lease is None and is_at_rest and has_left):
                raise held(kernel_id, f"is {record.state} on another machine")
            return set()
        if is_locked is False:
            if self.place.sees_processes_of(place):
                return {place.key}
            if not locks_reach_all(self.state_dir) and self._leases.is_heard_of(place.key):
                raise held(
                    kernel_id,
                    "is not taken over: its daemon was killed less than a minute ago, or file locks do not reach other machines on"
                    f" this file system ({file_system_of(self.state_dir) or 'of unknown type'}), where kernels cannot change machines",
                )
        return set()

    def _write_leased(self, kernel_id: str, encoded: bytes, state: KernelState) -> None:
        if not self._leases.knows(kernel_id):
            other = self._of(kernel_id)
            if other is not None and other.place != self.place:
                raise held(kernel_id, f"is {other.state} on another machine")
        if self._leases.has_moved(kernel_id):
            self._caught_up(kernel_id)
        if state in _AT_REST:
            self._leases.begin(kernel_id)
        else:
            self._leases.have(kernel_id)
        with self._leases.checked(kernel_id):
            self._replace(self._path(kernel_id), encoded)
        if state in _AT_REST:
            self._leases.release(kernel_id)

    def _caught_up(self, kernel_id: str) -> bool:
        """Return whether a record is still this place's although another daemon has had the lease without taking the kernel over."""
        if is_mine := self._is_mine(kernel_id):
            self._leases.catch_up(kernel_id)
        return is_mine

    def _is_mine(self, kernel_id: str) -> bool:
        record = self._of(kernel_id)
        return record is not None and record.place == self.place

    def _become_branch(self, kernel_id: str, reason: SessionLost) -> None:
        """Keep a kernel, as a branch, whose record belongs to another daemon now."""
        with self._mutex:
            self._branches.add(kernel_id)
            self._lost[kernel_id] = reason
            self._leases.leave(kernel_id)
        _log.error("kernel %s: %s %s", kernel_id, reason, reason.hint)

    def _replace(self, path: Path, encoded: bytes) -> None:
        try:
            with_room(path, lambda: path.parent.mkdir(mode=0o700, exist_ok=True))
            write_file(path, encoded)
        except OSError as error:
            raise (StoreFull if is_disk_full(error) else StoreUnavailable)(
                f"The daemon's state cannot be written: {error.strerror}: {path}",
                hint="Make room in the data directory, or choose another one.",
            ) from error

    def _of(self, kernel_id: str) -> KernelRecord | None:
        return next(self._read(kernel_id), None)

    def _read(self, kernel_id: str = "*", name: str = "record.json") -> Iterator[KernelRecord]:
        for path in (self.state_dir / "kernels").glob(f"{kernel_id}/{name}"):
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

    def _path(self, kernel_id: str) -> Path:
        return self.state_dir / "kernels" / kernel_id / "record.json"

    def _branch_path(self, kernel_id: str) -> Path:
        return self._path(kernel_id).with_name(f"branch-{self.place.key}.json")


class _PlaceLocks:
    """The locks `<place>.lock` in a folder, as seen by the daemon of `place`, which holds its own for life. Methods raise OSError."""

    def __init__(self, folder: Path, place: Place) -> None:
        self._folder, self._place = folder, place
        self._lock = -1

    def hold(self) -> None:
        """Acquire the lock of the own place. Raises DaemonUnavailable if another daemon has it."""
        path = self._path(self._place)
        self._lock = with_room(path, lambda: lock_or_refuse(path))
        if self._lock < 0:
            raise DaemonUnavailable(
                "Another daemon of this place uses the data directory through another runtime directory.",
                hint="Use the same JUPYTER_GPUCKPT_RUNTIME_DIR everywhere.",
            )

    def release(self) -> None:
        """Release this daemon's lock."""
        self._path(self._place).unlink(missing_ok=True)
        os.close(self._lock)

    def is_held(self, place: Place) -> bool | None:
        """Return whether the daemon of a place holds its lock; None if it has exited and removed the file."""
        return is_locked(self._path(place))

    def _path(self, place: Place) -> Path:
        return self._folder / f"{place.key}.lock"


def _remove_leftovers(kernels: Path, exits: Path, needed_exits: Collection[str]) -> None:
    """Remove unfinished files of records that killed daemons left, and old exit files except `needed_exits`.

    Age alone removes nothing: the time of day may have been set a moment ago.
    """
    for folder in kernels.iterdir():
        with suppress(OSError):  # another place's daemon may be renaming or removing it now
            abandoned = list(filter(_is_abandoned, folder.glob(f"{UNFINISHED}*")))
            for path in abandoned:
                path.unlink()
            if abandoned:
                folder.rmdir()  # fails where a record lies beside it
    found = []
    for path in exits.iterdir():
        with suppress(FileNotFoundError):
            found.append((path.stat().st_mtime, path))
    before = time.time() - _KEEP_EXITS_SECONDS
    for written, path in sorted(found)[:-_KEEP_EXITS]:
        if written < before and str(path) not in needed_exits:
            path.unlink(missing_ok=True)


def _is_abandoned(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > _ABANDONED_SECONDS and not is_locked(path)
