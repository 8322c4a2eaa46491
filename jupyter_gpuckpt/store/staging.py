"""Staging of snapshots: a manifest is on disk under a temporary name before its snapshot exists."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from ..errors import SnapshotExists
from ..wire.manifest_records import Manifest, SnapshotInfo
from . import manifests, stub_files
from .chunks_in_use import PinsInUse
from .faults import store_errors
from .snapshot_rows import FreshPlaces, Records

logger = logging.getLogger(__name__)


class Needed(NamedTuple):
    """The stored chunks of which a snapshot's streams consist, and their places."""

    digests: set[bytes]
    located: FreshPlaces

    @property
    def stored_bytes(self) -> int:
        """The compressed bytes of the chunks."""
        return int(self.located.places.rows["stored_length"].sum())


class Staged:
    """A staged manifest, on disk under a temporary name; `manifest`: the record that was read back from there.

    Use it as a context manager: leaving it without `publish` removes the file. If a crash leaves the file, the next opening of the
    store removes it. The constructor raises OSError.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._file, self.manifest = manifests.stage(directory, manifest)
        #: Whether the file has its final name; if `publish` raised nevertheless, a power cut may undo that.
        self.published = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self.published:
            self._file.unlink(missing_ok=True)

    def publish(self) -> None:
        """Publish the snapshot; it exists durably on return. Raises StoreFull, StoreUnavailable."""
        directory = self._file.parent
        with store_errors(directory):
            path = manifests.path_of(directory, self.manifest.info.snapshot_id)
            try:
                # A stub file that an earlier snapshot of this id left would make the new one a stub.
                stub_files.remove(path.with_suffix(stub_files.SUFFIX))
                manifests.commit(self._file)
            except OSError:
                self.published = path.exists()
                raise
        self.published = True


class Staging:
    """Staging of snapshots in one store. `lock` is the store's, which guards the pins in use."""

    def __init__(self, records: Records, in_use: PinsInUse, lock: threading.RLock) -> None:
        self._records, self._in_use, self._lock = records, in_use, lock
        self._ids: set[str] = set()

    @contextmanager
    def alone(self, snapshot_id: str) -> Iterator[None]:
        """Exclude others from staging this snapshot. Raises SnapshotExists if one is doing so already."""
        with self._lock:
            if snapshot_id in self._ids:
                raise exists(snapshot_id)
            self._ids.add(snapshot_id)
        try:
            yield
        finally:
            with self._lock:
                self._ids.discard(snapshot_id)

    @contextmanager
    def recorded(self, staged: Staged, needed: Needed) -> Iterator[None]:
        """Let `staged` be published inside the block, and record the snapshot afterwards if it was."""
        try:
            with staged:
                yield
        finally:
            if staged.published:
                self.record(staged.manifest.info, *needed)

    def record(
        self, info: SnapshotInfo, digests: set[bytes], located: FreshPlaces | None = None
    ) -> None:
        """Record a snapshot that was just published or is whole again. From then on the record protects its chunks, not a pin in use."""
        try:
            self._records.add(info, digests, self._records.identity(info.snapshot_id), located)
        except (OSError, sqlite3.OperationalError) as error:
            # Its manifest will be read later. A running collection has not seen that manifest, so a pin must outlast it.
            logger.warning("Snapshot %s is not recorded yet: %s", info.snapshot_id, error)
            with self._lock:
                self._in_use.await_publication(self._in_use.take(digests))
        else:
            with self._lock:
                self._in_use.published(digests)


def exists(snapshot_id: str) -> SnapshotExists:
    """Return the error for a snapshot that already exists."""
    return SnapshotExists(
        f"The snapshot is in the store already: {snapshot_id}.",
        hint="It is the same one: use it, undo its deletion, or delete it first.",
    )
