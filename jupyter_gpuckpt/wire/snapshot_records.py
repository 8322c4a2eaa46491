"""The records of the protocol about snapshots (`protocol.py` has the others)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from ..errors import ErrorRecord
from .manifest_records import MAX_TITLE, SnapshotInfo, Variables
from .retention_policy import RetentionPolicy as RetentionPolicy  # noqa: PLC0414 - for others


class UploadState(StrEnum):
    """The state of a snapshot's upload; `waiting` also before a retry."""

    WAITING = "waiting"
    UPLOADING = "uploading"
    UPLOADED = "uploaded"
    FAILED = "failed"


class Upload(msgspec.Struct, frozen=True):
    """The upload of a snapshot to a remote. `total_bytes`: an upper bound, since chunks that the remote has are not sent."""

    remote: str
    state: UploadState
    done_bytes: int = 0
    total_bytes: int = 0
    #: The error of a failed upload, or of the last attempt of a waiting one.
    error: ErrorRecord | None = None


class FailedUpload(msgspec.Struct, frozen=True):
    """A failed upload that is not retried automatically."""

    snapshot_id: str
    error: ErrorRecord


class Traffic(msgspec.Struct, frozen=True):
    """The traffic of all uploads from this machine so far. `seconds`: how long they took, pauses included."""

    sent_bytes: int = 0
    seconds: float = 0.0

    def and_then(self, more: Traffic) -> Traffic:
        """Return the sum of both."""
        return Traffic(self.sent_bytes + more.sent_bytes, self.seconds + more.seconds)


class RemoteCollection(msgspec.Struct, frozen=True):
    """The last removal of unneeded packs from a remote by this machine. Times are seconds since the epoch; 0: never.

    `looked_at`: the time of the last check whether a removal is due. `condemned`: packs that the next one removes if nothing needs them.
    """

    looked_at: float = 0.0
    at: float = 0.0
    removed: int = 0
    freed_bytes: int = 0
    condemned: int = 0
    error: ErrorRecord | None = None


class RemoteUploads(msgspec.Struct, frozen=True, kw_only=True):
    """GET /uploads: the state of uploads to a remote. With `trouble` it is tried again at `retry_at` (seconds since the epoch)."""

    remote: str
    automatic: bool
    paused: bool
    uploaded: int = 0
    waiting: int = 0
    #: An upper bound, since chunks that the remote has are not sent.
    waiting_bytes: int = 0
    uploading: str = ""
    failed: list[FailedUpload] = []
    #: How many snapshots that were deleted here the remote may still list.
    deletions: int = 0
    last_uploaded_at: float | None = None
    trouble: ErrorRecord | None = None
    retry_at: float | None = None
    traffic: Traffic = Traffic()
    collected: RemoteCollection = RemoteCollection()


class UploadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /uploads: upload these snapshots to a remote before all others, even if it is paused or not automatic."""

    remote: str
    snapshot_ids: list[str]


class Snapshot(SnapshotInfo, frozen=True, kw_only=True):
    """GET /snapshots: the current record of a snapshot.

    `deleted_at`: the time of its deletion, if that can still be undone, which is possible until `kept_until` (seconds since the
    epoch).
    """

    #: Whether a suspended kernel or a running resume needs it, so that it cannot be deleted.
    needed: bool = False
    #: Whether its kernel is one of this daemon's, running or suspended.
    kernel_live: bool = False
    deleted_at: float | None = None
    kept_until: float | None = None
    #: One for each remote to which it was, is being or will be uploaded.
    uploads: list[Upload] = msgspec.field(default_factory=list)
    #: The only remote that has its content, from which a resume fetches it; empty: unknown. None: its content is here.
    remote_only: str | None = None


class SnapshotVariables(msgspec.Struct, frozen=True):
    """GET /snapshots/{id}/variables: the kernel's variables; None if they are not known."""

    kernel_id: str
    variables: Variables | None = None


class SnapshotNotebook(msgspec.Struct, frozen=True):
    """GET /snapshots/{id}/notebook: the notebook's JSON, not validated. `modified`: as in the manifest; 0 if the notebook is not here."""

    modified: float = 0.0
    notebook: msgspec.Raw = msgspec.Raw(b"null")


class AnnotateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PATCH /snapshots/{id}: fields that are None are not changed."""

    title: Annotated[str, msgspec.Meta(max_length=MAX_TITLE)] | None = None
    note: Annotated[str, msgspec.Meta(max_length=20_000)] | None = None
    pinned: bool | None = None


class SnapshotChangeKind(StrEnum):
    """The kind of a snapshot's change; `restored`: its deletion was undone."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    RESTORED = "restored"


class SnapshotChange(msgspec.Struct, frozen=True):
    """A change of a snapshot. `kernel_id` is empty if its manifest cannot be read."""

    snapshot_id: str
    kernel_id: str
    change: SnapshotChangeKind


class Verification(msgspec.Struct, frozen=True):
    """POST /snapshots/{id}/verify: every chunk was read and its digest compared. `checked_bytes`: before compression."""

    snapshot_id: str
    ok: bool
    checked_bytes: int
    seconds: float
    #: The problems, a sentence each; beyond a hundred they are only counted.
    problems: list[str] = []


class NameUsage(msgspec.Struct, frozen=True):
    """The disk use of the snapshots of one name, usually a notebook's present path. `exclusive_bytes`: those that no other name needs."""

    name: str
    snapshots: int
    stored_bytes: int
    raw_bytes: int
    exclusive_bytes: int


class StoreUsage(msgspec.Struct, frozen=True):
    """GET /store: the sizes of the store in bytes.

    `raw_bytes`: the contents of snapshots; `unique_bytes`: the same after deduplication; `stored_bytes`: and compressed;
    `disk_bytes`: the store on its disk, with deleted snapshots that are still kept. Chunks that only remotes have are in `remote_bytes`
    alone.
    """

    path: str
    free_bytes: int
    disk_bytes: int
    stored_bytes: int
    raw_bytes: int
    unique_bytes: int
    snapshots: int
    #: The number of those whose chunks are only in remotes, and their bytes there; shared chunks count for each.
    remote_snapshots: int = 0
    remote_bytes: int = 0
    #: The disk use by name, largest first.
    by_name: list[NameUsage] = []
    #: The ids of the snapshots that are known to lack chunks, or to have damaged ones.
    damaged: list[str] = []
    #: For how long the deletion of a snapshot can be undone; 0: it cannot.
    undo_delete_seconds: float = 0.0


class Change(StrEnum):
    """The kind of a file's change."""

    CHANGED = "changed"
    REMOVED = "removed"
    SMALLER = "smaller"
    #: A resume must be forced: the file is gone, or shorter than what the kernel needs of it, or a database in the middle of a transaction.
    MISSING = "missing"
    TOO_SHORT = "too_short"
    IN_TRANSACTION = "in_transaction"


class FileChange(msgspec.Struct, frozen=True):
    """A file that a kernel had open, then and now. `mtime`: seconds since the epoch, 0: gone. Lengths are in bytes; None: unknown."""

    path: str
    change: Change
    mtime: float
    length_then: int | None = None
    length_now: int | None = None


class Changes(msgspec.Struct, frozen=True):
    """GET /snapshots/{id}/changes: changed files, and the obstacles to a resume here, a sentence each."""

    files: list[FileChange] = []
    obstacles: list[str] = []


class PruneRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /snapshots/prune: remove the snapshots that `policy` does not keep; `dry_run`: only list them."""

    policy: RetentionPolicy
    dry_run: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """Retention's verdict on a snapshot: whether it is removed, and the reason."""

    snapshot: SnapshotInfo
    removed: bool
    reason: str


class PruneReport(msgspec.Struct, frozen=True):
    """The verdicts of a prune, newest first. `freed_bytes`: on the disk; for a dry run an estimate."""

    verdicts: list[Verdict] = []
    freed_bytes: int = 0
