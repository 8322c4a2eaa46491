"""What waits for one remote, what failed, and what it has: on record in a file of the remote's state, so that the next daemon knows."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from .. import decoding
from ..errors import (
    AccessDenied,
    ConfigurationError,
    ErrorRecord,
    HostError,
    StoreFull,
    StoreUnavailable,
    record_of,
)
from ..model import SnapshotInfo
from ..remote_records import Remote
from ..snapshot_records import FailedUpload, RemoteUploads, Upload, UploadState
from ..store.faults import store_errors
from ..store.manifests import replace_file

#: What passes by itself: networks, credentials that are renewed, a disk on which somebody makes room.
_PASSES = (StoreUnavailable, AccessDenied, StoreFull)
#: What is wrong with the remote, not with a snapshot: nothing is tried until the remote is changed.
_OF_THE_REMOTE = (ConfigurationError, HostError)
_FIRST_SECONDS, _MOST_SECONDS = 2.0, 600.0
#: For so long a daemon that nobody needs waits for a remote that cannot be reached; then the next daemon goes on.
PATIENCE_SECONDS = 3600.0

_log = logging.getLogger(__name__)


class Uploaded(msgspec.Struct, frozen=True):
    """What a remote has of the snapshots that are here, by snapshot: since when (seconds since the epoch)."""

    snapshots: dict[str, float] = {}
    last_at: float = 0.0

    def and_now(
        self, snapshot_id: str, here: Iterable[str], last_at: float | None = None
    ) -> Uploaded:
        """Return it with one more snapshot, and without those that are not here any more. `last_at`: None: now."""
        now = time.time()
        kept = {one: self.snapshots[one] for one in here if one in self.snapshots}
        return Uploaded(kept | {snapshot_id: now}, now if last_at is None else last_at)


def read_uploaded(path: Path) -> Uploaded:
    """Return what is on record; nothing where that cannot be read: then the remote is asked about every snapshot."""
    try:
        return decoding.from_json(path.read_bytes(), Uploaded)
    except FileNotFoundError:
        return Uploaded()
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("the remote is asked what it has: %s: %s", path, error)
        return Uploaded()


def write_uploaded(path: Path, uploaded: Uploaded) -> None:
    """Put it on record, durably. Raises StoreFull, StoreUnavailable."""
    with store_errors(path.parent):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, msgspec.json.encode(uploaded))


class RemoteQueue:
    """Queue of the uploads to one remote. `here`, in its methods: all snapshots of the store, newest first."""

    def __init__(self, remote: Remote, uploaded: Uploaded) -> None:
        self.remote, self.uploaded = remote, uploaded
        #: By users, in their order; they come first.
        self.asked: list[str] = []
        self._failed: dict[str, ErrorRecord] = {}
        #: Of the last attempt: what is wrong with the remote.
        self._trouble: ErrorRecord | None = None
        self._is_refused = False
        self._failures = 0
        self._not_before = self._in_trouble_since = 0.0

    def change(self, remote: Remote, uploaded: Uploaded) -> None:
        """Take the remote as it is now; what failed with it as it was is tried again."""
        self.remote, self.uploaded = remote, uploaded
        self._failed.clear()
        self._forget_trouble()

    def ask(self, snapshot_ids: Iterable[str]) -> None:
        """Upload these now, whatever was of them before."""
        for snapshot_id in snapshot_ids:
            self._failed.pop(snapshot_id, None)
            self.asked = [*(one for one in self.asked if one != snapshot_id), snapshot_id]
        wanted = set(self.asked)
        left = {one: at for one, at in self.uploaded.snapshots.items() if one not in wanted}
        self.uploaded = Uploaded(left, self.uploaded.last_at)
        self._forget_trouble()

    def forget_others(self, here: Mapping[str, SnapshotInfo]) -> None:
        """Drop what is not in the store any more."""
        self.asked = [one for one in self.asked if one in here]
        self._failed = {one: error for one, error in self._failed.items() if one in here}

    def succeeded(self, snapshot_id: str, uploaded: Uploaded) -> None:
        """Take in that a snapshot is on the remote."""
        self._drop(snapshot_id)
        self.uploaded = uploaded
        self._forget_trouble()

    def failed(self, snapshot_id: str, error: BaseException) -> None:
        """Take in that an attempt failed: it is made again later, or not by itself."""
        now = time.monotonic()
        record = record_of(error)
        if isinstance(error, _PASSES + _OF_THE_REMOTE):
            if self._trouble is None:
                self._in_trouble_since = now
            self._trouble, self._is_refused = record, isinstance(error, _OF_THE_REMOTE)
            if self._is_refused:
                self.asked.clear()
        else:
            self._drop(snapshot_id)
            self._failed[snapshot_id] = record
        longest = min(_MOST_SECONDS, _FIRST_SECONDS * 2**self._failures)
        self._failures = min(self._failures + 1, 20)
        # Not all daemons at the same moment.
        self._not_before = now + longest * (0.5 + random.random() / 2)  # noqa: S311 - no secret

    def waiting(self, here: Mapping[str, SnapshotInfo]) -> Iterator[str]:
        """Yield what is to be uploaded by and by, in this order."""
        yield from self.asked
        if self.remote.automatic and not self.remote.paused:
            yield from self._others(here)

    def _others(self, here: Mapping[str, SnapshotInfo]) -> Iterator[str]:
        done = (self.uploaded.snapshots, self._failed, self.asked)
        return (one for one in here if not any(one in where for where in done))

    def next(self, here: Mapping[str, SnapshotInfo]) -> str:
        """Return what is to be uploaded now; empty if nothing is."""
        if self._is_refused or time.monotonic() < self._not_before:
            return ""
        return next(self.waiting(here), "")

    def seconds_left(self, here: Mapping[str, SnapshotInfo]) -> float | None:
        """Return in how long something can be uploaded; None: nothing is waiting for a time."""
        if self._is_refused or not next(self.waiting(here), ""):
            return None
        return max(0.0, self._not_before - time.monotonic())

    def is_worth_waiting(self, here: Mapping[str, SnapshotInfo]) -> bool:
        """Return whether something may be uploaded soon."""
        if self.seconds_left(here) is None:
            return False
        since = time.monotonic() - self._in_trouble_since
        return self._trouble is None or since < PATIENCE_SECONDS

    def upload_of(self, info: SnapshotInfo) -> Upload | None:
        """Return a snapshot's way to this remote; None if it is not to go there."""
        name, snapshot_id, size = self.remote.name, info.snapshot_id, info.sizes.stored_bytes
        if snapshot_id in self._failed:
            error = self._failed[snapshot_id]
            return Upload(name, UploadState.FAILED, total_bytes=size, error=error)
        if snapshot_id in self.uploaded.snapshots:
            return Upload(name, UploadState.UPLOADED, size, size)
        if snapshot_id in self.asked or self.remote.automatic:
            state = UploadState.FAILED if self._is_refused else UploadState.WAITING
            return Upload(name, state, total_bytes=size, error=self._trouble)
        return None

    def view(self, here: Mapping[str, SnapshotInfo], uploading: str) -> RemoteUploads:
        """Return how the remote stands, to which `uploading` is on its way."""
        waits = [*self.asked, *(self._others(here) if self.remote.automatic else ())]
        left = self.seconds_left(here)
        return RemoteUploads(
            remote=self.remote.name,
            automatic=self.remote.automatic,
            paused=self.remote.paused,
            uploaded=sum(one in here for one in self.uploaded.snapshots),
            waiting=len(waits),
            waiting_bytes=sum(here[one].sizes.stored_bytes for one in waits if one in here),
            uploading=uploading,
            failed=[FailedUpload(one, error) for one, error in self._failed.items()],
            last_uploaded_at=self.uploaded.last_at or None,
            trouble=self._trouble,
            retry_at=time.time() + left if left is not None and self._trouble else None,
        )

    def _drop(self, snapshot_id: str) -> None:
        self.asked = [one for one in self.asked if one != snapshot_id]

    def _forget_trouble(self) -> None:
        self._trouble, self._is_refused = None, False
        self._failures, self._not_before = 0, 0.0
