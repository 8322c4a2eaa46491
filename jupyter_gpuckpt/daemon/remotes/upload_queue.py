"""The upload queue of one remote: waiting, failed and completed uploads. A file records the completed ones for the next daemon."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from types import MappingProxyType

import msgspec

from ...errors import (
    AccessDenied,
    ConfigurationError,
    ErrorRecord,
    HostError,
    StoreFull,
    StoreUnavailable,
    record_of,
)
from ...remote.listed_facts import Amendment
from ...remote.remote_list import state_folder
from ...store.faults import store_errors
from ...store.manifests import replace_file
from ...store.stub_files import Stub
from ...wire import decoding
from ...wire.manifest_records import SnapshotInfo
from ...wire.remote_records import Remote
from ...wire.snapshot_records import FailedUpload, RemoteUploads, Traffic, Upload, UploadState
from .pauses import Pauses

#: Transient errors: networks, credentials that are renewed, full disks.
_PASSES = (StoreUnavailable, AccessDenied, StoreFull)
#: Errors of the remote, not of a snapshot: no upload is tried until the remote is changed.
_OF_THE_REMOTE = (ConfigurationError, HostError)

_NO_TRAFFIC = Traffic()
_NONE: Mapping[str, Stub] = MappingProxyType({})

_log = logging.getLogger(__name__)


class Uploaded(msgspec.Struct, frozen=True):
    """The local snapshots that a remote has: by id, the time of the upload (seconds since the epoch)."""

    snapshots: dict[str, float] = {}
    last_at: float = 0.0
    traffic: Traffic = Traffic()
    #: Snapshots that the remote had and no longer lists, and when that was found. They are uploaded again only on request.
    gone: dict[str, float] = {}

    def and_now(
        self,
        snapshot_id: str,
        local_snapshots: Iterable[str],
        last_at: float | None = None,
        traffic: Traffic = _NO_TRAFFIC,
    ) -> Uploaded:
        """Return a copy with one more snapshot and without those no longer in the store. `last_at` None: now.

        `traffic`: what its upload took.
        """
        now = time.time()
        local = set(local_snapshots)
        kept = {one: at for one, at in self.snapshots.items() if one in local}
        gone = {one: at for one, at in self.gone.items() if one in local and one != snapshot_id}
        last_at = now if last_at is None else last_at
        return Uploaded(kept | {snapshot_id: now}, last_at, self.traffic.and_then(traffic), gone)

    def without(self, snapshot_ids: Iterable[str]) -> Uploaded:
        """Return a copy in which the remote no longer has these snapshots."""
        gone = dict.fromkeys(snapshot_ids, time.time())
        left = {one: at for one, at in self.snapshots.items() if one not in gone}
        return msgspec.structs.replace(self, snapshots=left, gone=self.gone | gone)

    def with_wanted(self, snapshot_ids: Iterable[str]) -> Uploaded:
        """Return a copy by which snapshots that are gone from the remote may be uploaded again."""
        wanted = set(snapshot_ids)
        left = {one: at for one, at in self.gone.items() if one not in wanted}
        return msgspec.structs.replace(self, gone=left)

    def with_again(self, snapshot_ids: Iterable[str]) -> Uploaded:
        """Return a copy in which the remote has those of these snapshots that were recorded as gone."""
        back = dict.fromkeys((one for one in snapshot_ids if one in self.gone), time.time())
        left = {one: at for one, at in self.gone.items() if one not in back}
        return msgspec.structs.replace(self, snapshots=self.snapshots | back, gone=left)


def record_path(data_dir: Path, name: str) -> Path:
    """Return the path of the record of the snapshots that a remote has."""
    return state_folder(data_dir, name) / "uploaded.json"


def read_uploaded(path: Path) -> Uploaded:
    """Return the recorded uploads; none if the file cannot be read: then the remote is asked about every snapshot."""
    try:
        return decoding.from_json(path.read_bytes(), Uploaded)
    except FileNotFoundError:
        return Uploaded()
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("the remote is asked for its snapshots: %s: %s", path, error)
        return Uploaded()


def write_uploaded(path: Path, uploaded: Uploaded) -> None:
    """Write the record durably. Raises StoreFull, StoreUnavailable."""
    with store_errors(path.parent):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, msgspec.json.encode(uploaded))


class RemoteQueue:
    """The queue of uploads to one remote. The parameter `local_snapshots` of its methods: all snapshots of the store, newest first.

    `stubs`: snapshots that are never uploaded, because only a remote has their chunks; the caller updates it.
    """

    def __init__(
        self, remote: Remote, uploaded: Uploaded, stubs: Mapping[str, Stub] = _NONE
    ) -> None:
        self.remote, self.uploaded, self._stubs = remote, uploaded, stubs
        #: Uploads that users requested, in their order; they come first.
        self.asked: list[str] = []
        #: Interrupted uploads of snapshots that are gone, to be given up; `_not_given_up`: those that failed, for the next daemon.
        self._left: list[str] = []
        self._not_given_up: set[str] = set()
        self._failed: dict[str, ErrorRecord] = {}
        self._pauses = Pauses()
        #: The pauses of sending changes. Uploads have their own, because they must not wait when one session cannot be changed.
        self._pauses_of_changes = Pauses()
        #: The snapshot of the failed last attempt: another one goes first, in case only this one causes the error.
        self._stuck = ""
        #: Whether this machine goes soon: the newest snapshot of each kernel comes first, the smallest first.
        self.hurries = False
        #: The changes of snapshots that must be sent to the remote; the caller updates them.
        self.amendments: list[Amendment] = []

    def taken_over(self, remote: Remote, uploaded: Uploaded) -> RemoteQueue:
        """Return a queue for the changed remote; failed uploads are tried again.

        It is a new object, so that the end of an upload to the former configuration does not affect the new one.
        """
        queue = RemoteQueue(remote, uploaded, self._stubs)
        queue.asked, queue.hurries = list(self.asked), self.hurries
        return queue

    def hurry(self, *, on: bool) -> None:
        """Upload before this machine goes (`on`), or as usual. A remote that failed is tried again at once."""
        self.hurries = on
        if on:
            self._forget_trouble()

    def ask(self, snapshot_ids: Iterable[str]) -> None:
        """Queue these snapshots first, even if they failed or were uploaded before."""
        for snapshot_id in snapshot_ids:
            self._failed.pop(snapshot_id, None)
            self.asked = [*(one for one in self.asked if one != snapshot_id), snapshot_id]
        wanted = set(self.asked)
        left = {one: at for one, at in self.uploaded.snapshots.items() if one not in wanted}
        self.uploaded = msgspec.structs.replace(self.uploaded, snapshots=left)
        self._forget_trouble()

    def there(self, local_snapshots: Mapping[str, SnapshotInfo]) -> list[SnapshotInfo]:
        """Return the snapshots that the remote has."""
        return [info for info in local_snapshots.values() if self._is_there(info)]

    def recorded(self, local_snapshots: Mapping[str, SnapshotInfo]) -> list[SnapshotInfo]:
        """Return the snapshots that the remote has, or had before others removed them."""
        gone = self.uploaded.gone
        found = local_snapshots.values()
        return [info for info in found if self._is_there(info) or info.snapshot_id in gone]

    def forget_others(self, local_snapshots: Mapping[str, SnapshotInfo]) -> None:
        """Drop snapshots that are no longer in the store."""
        self.asked = [one for one in self.asked if one in local_snapshots]
        self._failed = {one: error for one, error in self._failed.items() if one in local_snapshots}

    def succeeded(
        self, snapshot_id: str, local_snapshots: Iterable[str], traffic: Traffic = _NO_TRAFFIC
    ) -> None:
        """Record that a snapshot is on the remote, and what its upload took."""
        self._drop(snapshot_id)
        self.uploaded = self.uploaded.and_now(snapshot_id, local_snapshots, traffic=traffic)
        self._forget_trouble()

    def take_left(self, snapshot_ids: Iterable[str]) -> None:
        """Replace the list of interrupted uploads whose snapshots are gone."""
        self._left = [one for one in snapshot_ids if one not in self._not_given_up]

    def gave_up(self, snapshot_id: str) -> None:
        """Record that an upload was given up completely."""
        self._left.remove(snapshot_id)
        self._forget_trouble()

    def failed(self, snapshot_id: str, error: BaseException) -> None:
        """Record a failed attempt: a transient error is retried later, others are not retried automatically.

        An error of one snapshot does not delay others.
        """
        record = record_of(error)
        if isinstance(error, _PASSES):
            self._stuck = snapshot_id
            self._pauses.failed(record)
        elif isinstance(error, _OF_THE_REMOTE):
            self._pauses.failed(record, refused=True)
            # Requested uploads fail with the error; they are not retried when the remote is changed.
            self._failed |= dict.fromkeys(self.asked, record)
            self.asked.clear()
        elif snapshot_id in self._left:
            self._left.remove(snapshot_id)
            self._not_given_up.add(snapshot_id)
        else:
            self._drop(snapshot_id)
            self._failed[snapshot_id] = record

    def amending_failed(self, error: BaseException) -> bool:
        """Record that changes could not be sent to the remote; return False if the changes themselves caused the error."""
        if not isinstance(error, (*_PASSES, *_OF_THE_REMOTE)):
            return False
        self._pauses_of_changes.failed(record_of(error), refused=isinstance(error, _OF_THE_REMOTE))
        return True

    def told(self) -> None:
        """Record that all changes were sent to the remote."""
        self.amendments = []
        self._pauses_of_changes.end()

    def waiting(self, local_snapshots: Mapping[str, SnapshotInfo]) -> Iterator[str]:
        """Yield the snapshots to be uploaded, in order."""
        is_automatic = self.remote.automatic and not self.remote.paused
        waiting = chain(self.asked, self._others(local_snapshots) if is_automatic else ())
        yield from self._by_need(waiting, local_snapshots) if self.hurries else waiting

    def _by_need(
        self, waiting: Iterable[str], local_snapshots: Mapping[str, SnapshotInfo]
    ) -> list[str]:
        newest = {info.kernel_id: one for one, info in reversed(list(local_snapshots.items()))}
        known = [(local_snapshots[one], one) for one in waiting if one in local_snapshots]
        return [
            one
            for info, one in sorted(
                known,
                key=lambda each: (newest[each[0].kernel_id] != each[1], each[0].sizes.stored_bytes),
            )
        ]

    def _others(self, local_snapshots: Mapping[str, SnapshotInfo]) -> Iterator[str]:
        uploaded = self.uploaded
        done = (uploaded.snapshots, uploaded.gone, self._failed, self.asked, self._stubs)
        erased = self.remote.erased
        return (
            one
            for one, info in local_snapshots.items()
            if info.kernel_id not in erased and not any(one in where for where in done)
        )

    def _is_uploaded(self, info: SnapshotInfo) -> bool:
        """Return whether the remote has a snapshot that was not erased there since."""
        since = self.uploaded.snapshots.get(info.snapshot_id, 0.0)
        return since > self.remote.erased.get(info.kernel_id, 0.0)

    def _is_there(self, info: SnapshotInfo) -> bool:
        """Return whether the remote has a snapshot, or the only copy of its content."""
        stub = self._stubs.get(info.snapshot_id)
        is_only_there = stub is not None and stub.remote == self.remote.name
        is_lost = info.kernel_id in self.remote.erased or info.snapshot_id in self.uploaded.gone
        return self._is_uploaded(info) or (is_only_there and not is_lost)

    def amends(self, local_snapshots: Mapping[str, SnapshotInfo]) -> bool:
        """Return whether changes are to be sent to the remote now. After a failure, uploads come first."""
        pauses = self._pauses_of_changes
        if not self._has_changes or not pauses.is_over:
            return False
        return pauses.trouble is None or not self.next(local_snapshots)

    @property
    def _has_changes(self) -> bool:
        return bool(self.amendments) and not self.remote.paused and not self.hurries

    def next(self, local_snapshots: Mapping[str, SnapshotInfo]) -> str:
        """Return the snapshot to be given up or uploaded now; empty if there is none."""
        return self._first(local_snapshots) if self._pauses.is_over else ""

    def _pending(self, local_snapshots: Mapping[str, SnapshotInfo]) -> list[Pauses]:
        found = [self._pauses_of_changes] if self._has_changes else []
        return found + [self._pauses] * bool(self._first(local_snapshots))

    def seconds_left(self, local_snapshots: Mapping[str, SnapshotInfo]) -> float | None:
        """Return the seconds until the next attempt; None if none is scheduled."""
        times = [one.seconds_left for one in self._pending(local_snapshots)]
        return min((one for one in times if one is not None), default=None)

    def _first(self, local_snapshots: Mapping[str, SnapshotInfo]) -> str:
        left = [] if self.remote.paused or self.hurries else self._left
        waiting = chain(left, self.waiting(local_snapshots))
        first = next(waiting, "")
        return next(waiting, first) if first == self._stuck else first

    def is_worth_waiting(self, local_snapshots: Mapping[str, SnapshotInfo]) -> bool:
        """Return whether an upload, or the sending of changes, may start soon."""
        return any(one.is_worth_waiting for one in self._pending(local_snapshots))

    def upload_of(self, info: SnapshotInfo) -> Upload | None:
        """Return the state of a snapshot's upload to this remote; None if it will not be uploaded there."""
        name, snapshot_id, size = self.remote.name, info.snapshot_id, info.sizes.stored_bytes
        if snapshot_id in self._failed:
            error = self._failed[snapshot_id]
            return Upload(name, UploadState.FAILED, total_bytes=size, error=error)
        if self._is_there(info):
            return Upload(name, UploadState.UPLOADED, size, size)
        is_lost = info.kernel_id in self.remote.erased or snapshot_id in self.uploaded.gone
        is_wanted = self.remote.automatic and snapshot_id not in self._stubs and not is_lost
        if snapshot_id in self.asked or is_wanted:
            state = UploadState.FAILED if self._pauses.is_refused else UploadState.WAITING
            return Upload(name, state, total_bytes=size, error=self._pauses.trouble)
        return None

    def view(
        self,
        local_snapshots: Mapping[str, SnapshotInfo],
        uploading: str,
        trouble: ErrorRecord | None,
    ) -> RemoteUploads:
        """Return the state of uploads to the remote. `uploading`: the running one; `trouble`: the remote's current error."""
        waits = [*self.asked, *(self._others(local_snapshots) if self.remote.automatic else ())]
        left = self.seconds_left(local_snapshots)
        known = self._pauses.trouble or (
            self._pauses_of_changes.trouble if self._has_changes else None
        )
        return RemoteUploads(
            remote=self.remote.name,
            automatic=self.remote.automatic,
            paused=self.remote.paused,
            uploaded=sum(map(self._is_uploaded, local_snapshots.values())),
            waiting=len(waits),
            waiting_bytes=sum(
                local_snapshots[one].sizes.stored_bytes for one in waits if one in local_snapshots
            ),
            uploading=uploading,
            failed=[FailedUpload(one, error) for one, error in self._failed.items()],
            last_uploaded_at=self.uploaded.last_at or None,
            trouble=trouble or known,
            retry_at=time.time() + left if left is not None and known else None,
            traffic=self.uploaded.traffic,
        )

    def _drop(self, snapshot_id: str) -> None:
        self.asked = [one for one in self.asked if one != snapshot_id]

    def _forget_trouble(self) -> None:
        self._stuck = ""
        self._pauses.end()
