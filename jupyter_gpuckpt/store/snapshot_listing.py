"""The list of snapshots, cached while the files on disk are unchanged, because it is requested often.

It is first filled from the records (`snapshot_rows.py`) of manifests whose files have not changed.

This module locks no files; the code that changes them does (`local.py`).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec

from ..errors import StoreError
from ..wire.manifest_records import SnapshotInfo
from ..wire.snapshot_order import newest_first
from . import annotation_files, manifests, stub_files
from .annotation_files import Annotations
from .snapshot_rows import Records, identities_in, identity_of, joint_identity
from .stub_files import Stub

logger = logging.getLogger(__name__)

#: Suffixes of files beside a manifest that affect its entry in lists.
_BESIDE = (annotation_files.SUFFIX, stub_files.SUFFIX)


class Listed(msgspec.Struct, frozen=True, gc=False):
    """A snapshot in a list: `info` has the annotations' title, note and pin. `stub`: None if its chunks are here."""

    info: SnapshotInfo
    annotations: Annotations
    stub: Stub | None = None


class Listing:
    """The list of the snapshots in one folder of manifests. Thread-safe."""

    def __init__(self, directory: Path, records: Records) -> None:
        self._directory, self._records = directory, records
        self._known: dict[str, tuple[tuple[str, ...], Listed | None]] = {}
        self._on_record: dict[str, tuple[str, SnapshotInfo]] | None = None

    def all(self) -> list[Listed]:
        """Return all snapshots, newest first (`snapshot_order.py`), deleted ones included.

        Unreadable snapshots are logged and left out. Raises OSError if none can be read.
        """
        identities = identities_in(self._directory)
        names = [name for name in identities if name.endswith(manifests.SUFFIX)]
        found, broken = list[Listed](), None
        for name in names:
            stem = name.removesuffix(manifests.SUFFIX)
            beside = (identities.get(stem + suffix, "") for suffix in _BESIDE)
            try:
                listed = self._look(name, (identities[name], *beside))
            except OSError as error:
                logger.warning("A snapshot is left out of the list: %s", error)
                broken = error
            else:
                found += [listed] if listed else []
        if broken and not found:  # not a single file but the disk has failed
            raise broken
        for name in set(self._known) - identities.keys():
            self._known.pop(name, None)
        by_id = {listed.info.snapshot_id: listed for listed in found}
        return [by_id[info.snapshot_id] for info in newest_first(one.info for one in found)]

    def find(self, snapshot_id: str) -> Listed | None:
        """Return this snapshot; None if it is not there or cannot be read. Raises OSError."""
        path = manifests.path_of(self._directory, snapshot_id)
        beside = (identity_of(path.with_suffix(suffix)) for suffix in _BESIDE)
        return self._look(path.name, (identity_of(path), *beside))

    def find_kept(self, snapshot_id: str) -> Listed | None:
        """Return this snapshot; None if it is not there, cannot be read, or is deleted. Raises OSError."""
        listed = self.find(snapshot_id)
        return None if listed is None or listed.annotations.deleted else listed

    def get(self, snapshot_id: str) -> Listed:
        """Return this snapshot, which must not be deleted. Raises SnapshotNotFound, OSError."""
        listed = self.find_kept(snapshot_id)
        if listed is None:
            raise manifests.not_found(snapshot_id)
        return listed

    def alter(self, listed: Listed, changes: dict[str, Any]) -> Listed:
        """Change annotations, durably on return; return the changed snapshot. Raises FormatTooNew, OSError."""
        path = annotation_files.path_of(self._directory, listed.info.snapshot_id)
        before = annotation_files.read(path)  # raises errors that are only logged for lists
        altered = msgspec.structs.replace(before, **changes)
        if altered != before:
            annotation_files.write(path, altered)
        return Listed(altered.over(listed.info), altered, listed.stub)

    def _look(self, name: str, identity: tuple[str, ...]) -> Listed | None:
        known = self._known.get(name)
        if known is None or known[0] != identity:
            if self._on_record is None:
                self._on_record = self._records.infos()
            recorded, info = self._on_record.pop(name.removesuffix(manifests.SUFFIX), ("", None))
            if recorded != joint_identity(identity[0], identity[2]):
                info = None
            known = self._known[name] = (identity, _read(self._directory / name, info))
        return known[1]


def _read(path: Path, info: SnapshotInfo | None) -> Listed | None:
    beside = path.with_suffix(annotation_files.SUFFIX)
    try:
        info = info or manifests.read(path, manifests.Listed).info
    except StoreError as error:
        if path.exists():
            logger.warning("A snapshot is left out of the list: %s", error)
        return None
    try:
        annotations = annotation_files.read(beside)
    except (StoreError, OSError) as error:
        logger.warning("That snapshot is not changed: %s", error)
        annotations = Annotations(pinned=True)
    return Listed(
        annotations.over(info), annotations, stub_files.read(path.with_suffix(stub_files.SUFFIX))
    )
