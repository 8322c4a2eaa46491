"""What the daemon and its clients say to each other about snapshots: part of the protocol (`protocol.py` has the rest)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from .errors import ErrorRecord
from .model import SnapshotInfo, Variables


class UploadState(StrEnum):
    """How far a snapshot is on its way to a remote; `waiting` also while it is tried again."""

    WAITING = "waiting"
    UPLOADING = "uploading"
    UPLOADED = "uploaded"
    FAILED = "failed"


class Upload(msgspec.Struct, frozen=True):
    """A snapshot's way to a remote. `total_bytes`: at most what has to be sent; what the remote has already is not."""

    remote: str
    state: UploadState
    done_bytes: int = 0
    total_bytes: int = 0
    #: Why it failed; of one that is waiting, what the last attempt failed with.
    error: ErrorRecord | None = None


class FailedUpload(msgspec.Struct, frozen=True):
    """A snapshot that is not tried again by itself."""

    snapshot_id: str
    error: ErrorRecord


class RemoteUploads(msgspec.Struct, frozen=True, kw_only=True):
    """GET /uploads: how a remote stands. With `trouble` it is tried again at `retry_at` (seconds since the epoch)."""

    remote: str
    automatic: bool
    paused: bool
    uploaded: int = 0
    waiting: int = 0
    #: At most: what the remote has already is not sent.
    waiting_bytes: int = 0
    uploading: str = ""
    failed: list[FailedUpload] = []
    last_uploaded_at: float | None = None
    trouble: ErrorRecord | None = None
    retry_at: float | None = None


class UploadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /uploads: upload these snapshots to a remote before all others, also where it is paused or not automatic."""

    remote: str
    snapshot_ids: list[str]


class Snapshot(SnapshotInfo, frozen=True, kw_only=True):
    """GET /snapshots: a snapshot as it is now. `deleted_at`: when it was deleted, if that can still be undone, which it can until
    `kept_until` (seconds since the epoch)."""

    #: A kernel is in it, or is just coming out of it: it cannot be deleted.
    needed: bool = False
    #: Its kernel is one of this daemon's, running or suspended.
    kernel_live: bool = False
    deleted_at: float | None = None
    kept_until: float | None = None
    #: One for each remote to which it went, goes or is to go.
    uploads: list[Upload] = msgspec.field(default_factory=list)


class SnapshotVariables(msgspec.Struct, frozen=True):
    """GET /snapshots/{id}/variables: what the kernel's variables were; None where that is not known."""

    kernel_id: str
    variables: Variables | None = None


class AnnotateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PATCH /snapshots/{id}: what is None stays as it is."""

    title: Annotated[str, msgspec.Meta(max_length=300)] | None = None
    note: Annotated[str, msgspec.Meta(max_length=20_000)] | None = None
    pinned: bool | None = None


class SnapshotChangeKind(StrEnum):
    """What became of a snapshot; `restored`: its deletion was undone."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    RESTORED = "restored"


class SnapshotChange(msgspec.Struct, frozen=True):
    """A snapshot came, changed or went. `kernel_id` is empty where its manifest cannot be read."""

    snapshot_id: str
    kernel_id: str
    change: SnapshotChangeKind


class Verification(msgspec.Struct, frozen=True):
    """POST /snapshots/{id}/verify: every chunk was read and its digest compared. `checked_bytes`: before compression."""

    snapshot_id: str
    ok: bool
    checked_bytes: int
    seconds: float
    #: What is damaged, a sentence each; beyond a hundred they are only counted.
    problems: list[str] = []


class NameUsage(msgspec.Struct, frozen=True):
    """What the snapshots of one name, a notebook's path as a rule, take. `exclusive_bytes`: what no other name's snapshots need."""

    name: str
    snapshots: int
    stored_bytes: int
    raw_bytes: int
    exclusive_bytes: int


class Growth(msgspec.Struct, frozen=True):
    """By when (seconds since the epoch) how many bytes the snapshots that exist had brought."""

    time: float
    stored_bytes: int


class StoreUsage(msgspec.Struct, frozen=True):
    """GET /store: what snapshots hold (`raw_bytes`), what of it differs (`unique_bytes`), what that takes compressed
    (`stored_bytes`), and what the store takes on its disk (`disk_bytes`), deleted snapshots that are still kept included."""

    path: str
    free_bytes: int
    disk_bytes: int
    stored_bytes: int
    raw_bytes: int
    unique_bytes: int
    snapshots: int
    #: Largest first.
    by_name: list[NameUsage] = []
    #: Oldest first, sixty at most.
    growth: list[Growth] = []
