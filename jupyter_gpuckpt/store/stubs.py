"""Stubs of a store: snapshots of which only the manifest, annotations and a few streams are here; a remote has their chunks.

`daemon/remotes/near_copy.py` decides which snapshots become stubs. This module removes no chunks: the records of stubs need few chunks
(`snapshot_rows.py`), so collecting and repacking remove the rest.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import SnapshotInRemoteOnly
from ..wire.manifest_records import SnapshotInfo
from . import manifests, stub_files
from .faults import store_errors
from .snapshot_listing import Listing
from .staging import Staging
from .stub_files import Stub


class Stubs:
    """The stubs of one store. Thread-safe. `changing`: the store's lock that serializes changes of files beside manifests.

    Methods raise StoreFull and StoreUnavailable.
    """

    def __init__(
        self,
        directory: Path,
        listing: Listing,
        staging: Staging,
        changing: threading.RLock,
    ) -> None:
        self._directory, self._listing, self._staging = directory, listing, staging
        self._changing = changing
        # Guards the counts of uses, and the change of a snapshot to a stub.
        self._lock = threading.Lock()
        self._used: Counter[str] = Counter()

    def all(self) -> dict[str, Stub]:
        """Return the stubs by snapshot, deleted ones included."""
        with store_errors(self._directory):
            if not any(self._directory.glob("*" + stub_files.SUFFIX)):
                return {}
            listed = self._listing.all()
        return {one.info.snapshot_id: one.stub for one in listed if one.stub is not None}

    def identity(self) -> str:
        """Return the identity of this store. A store that is mounted at the same path instead has another one."""
        with store_errors(self._directory):
            return f"{self._directory.stat().st_ino:x}"

    def is_deleted(self, snapshot_id: str) -> bool:
        """Return whether a snapshot was deleted for good: no file is left of it, not even one that cannot be read."""
        manifest = manifests.path_of(self._directory, snapshot_id)
        stub = stub_files.path_of(self._directory, snapshot_id)
        with store_errors(self._directory):
            return not (os.path.lexists(manifest) or os.path.lexists(stub))

    def is_listed(self, snapshot_id: str) -> bool:
        """Return whether a snapshot is listed; one that was deleted, or that cannot be read, is not."""
        with store_errors(self._directory):
            return self._listing.find_kept(snapshot_id) is not None

    def find(self, snapshot_id: str) -> Stub | None:
        """Return the stub of a snapshot; None if its chunks are here, or if it is not listed."""
        with store_errors(self._directory):
            listed = self._listing.find_kept(snapshot_id)
        return listed.stub if listed is not None else None

    def require_here(self, snapshot_id: str) -> None:
        """Raise SnapshotInRemoteOnly if a snapshot's chunks are only in a remote."""
        if (stub := self.find(snapshot_id)) is not None:
            where = f"remote {stub.remote}" if stub.remote else "a remote"
            raise SnapshotInRemoteOnly(
                f"The content of snapshot {snapshot_id} is only in {where}.",
                hint="Resuming it brings it here.",
                command=f"So does `jupyter gpuckpt remote fetch {stub.remote or 'NAME'} {snapshot_id}`.",
            )

    @contextmanager
    def keeping(self, snapshot_id: str) -> Iterator[None]:
        """Prevent a snapshot from becoming a stub inside the block; it may be one already."""
        with self._lock:
            self._used[snapshot_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._used[snapshot_id] -= 1
                self._used += Counter()  # drops counts of 0

    @contextmanager
    def using(self, snapshot_id: str) -> Iterator[None]:
        """Keep a snapshot's chunks here inside the block. Raises SnapshotInRemoteOnly if it is a stub."""
        with self.keeping(snapshot_id):
            self.require_here(snapshot_id)
            yield

    def last_uses(self) -> dict[str, float]:
        """Return the times at which snapshots were last used, else created (seconds since the epoch)."""
        with store_errors(self._directory):
            listed = self._listing.all()
        return {
            one.info.snapshot_id: max(one.annotations.used_at, one.info.created) for one in listed
        }

    def note_use(self, snapshot_id: str) -> None:
        """Record that a snapshot is used now, so that it becomes a stub later than others. Raises SnapshotNotFound."""
        with self._changing, store_errors(self._directory):
            self._listing.alter(self._listing.get(snapshot_id), {"used_at": time.time()})

    def make(self, snapshot_id: str, stub: Stub) -> bool:
        """Make a snapshot a stub, durably; return False if it is one already, in use, pinned, deleted or gone."""
        with self._changing, store_errors(self._directory):
            listed = self._listing.find_kept(snapshot_id)
            if listed is None or listed.stub or listed.info.pinned:
                return False
            with self._lock:
                if self._used[snapshot_id]:
                    return False
                stub_files.write(stub_files.path_of(self._directory, snapshot_id), stub)
        return True

    def end(self, snapshot_id: str) -> SnapshotInfo:
        """Turn a stub into a whole snapshot, durably; the caller must have a pin in use on its chunks, all of which must be here.

        Raises SnapshotNotFound, ManifestInvalid.
        """
        with self._changing, store_errors(self._directory):
            path = manifests.path_of(self._directory, snapshot_id)
            found = manifests.read(path, manifests.References)
            stub_files.remove(path.with_suffix(stub_files.SUFFIX))
            self._staging.record(found.info, found.digests())
        return found.info
