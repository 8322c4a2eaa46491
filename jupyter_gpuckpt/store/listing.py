"""The list of snapshots, cached for as long as the files on the disk are the same, because lists are asked for often.

It is first filled from the records (`records.py`) of manifests whose files have not changed.

Nothing here locks files: the code that changes them does (`local.py`).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec

from ..errors import StoreError
from ..model import SnapshotInfo
from . import annotation_files, manifests
from .annotation_files import Annotations
from .records import Records, identities_in, identity_of

logger = logging.getLogger(__name__)


class Listed(msgspec.Struct, frozen=True, gc=False):
    """A snapshot in a list: `info` has the annotations' title, note and pin."""

    info: SnapshotInfo
    annotations: Annotations


class Listing:
    """The list of the snapshots in one folder of manifests. Thread-safe."""

    def __init__(self, directory: Path, records: Records) -> None:
        self._directory, self._records = directory, records
        self._known: dict[str, tuple[tuple[str, str], Listed | None]] = {}
        self._on_record: dict[str, tuple[str, SnapshotInfo]] | None = None

    def all(self) -> list[Listed]:
        """Return all snapshots, newest first, deleted ones included.

        What cannot be read is logged and left out. Raises OSError if nothing can be read.
        """
        identities = identities_in(self._directory)
        names = [name for name in identities if name.endswith(manifests.SUFFIX)]
        found, broken = list[Listed](), None
        for name in names:
            beside = name.removesuffix(manifests.SUFFIX) + annotation_files.SUFFIX
            try:
                listed = self._look(name, (identities[name], identities.get(beside, "")))
            except OSError as error:
                logger.warning("A snapshot is left out of the list: %s", error)
                broken = error
            else:
                found += [listed] if listed else []
        if broken and not found:  # it is not one file, it is the disk
            raise broken
        for name in set(self._known) - identities.keys():
            self._known.pop(name, None)
        return sorted(found, key=lambda listed: listed.info.created, reverse=True)

    def find(self, snapshot_id: str) -> Listed | None:
        """Return this snapshot; None if it is not there or cannot be read. Raises OSError."""
        path = manifests.path_of(self._directory, snapshot_id)
        beside = path.with_suffix(annotation_files.SUFFIX)
        return self._look(path.name, (identity_of(path), identity_of(beside)))

    def get(self, snapshot_id: str) -> Listed:
        """Return this snapshot, which must not be deleted. Raises SnapshotNotFound, OSError."""
        listed = self.find(snapshot_id)
        if listed is None or listed.annotations.deleted:
            raise manifests.not_found(snapshot_id)
        return listed

    def alter(self, listed: Listed, changes: dict[str, Any]) -> Listed:
        """Change annotations, durably on return; return the snapshot as it is then. Raises FormatTooNew, OSError."""
        path = annotation_files.path_of(self._directory, listed.info.snapshot_id)
        before = annotation_files.read(path)  # raises what is only logged for lists
        altered = msgspec.structs.replace(before, **changes)
        if altered != before:
            annotation_files.write(path, altered)
        return Listed(altered.over(listed.info), altered)

    def _look(self, name: str, identity: tuple[str, str]) -> Listed | None:
        known = self._known.get(name)
        if known is None or known[0] != identity:
            if self._on_record is None:
                self._on_record = self._records.infos()
            recorded, info = self._on_record.pop(name.removesuffix(manifests.SUFFIX), ("", None))
            if recorded != identity[0]:
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
        said = annotation_files.read(beside)
    except (StoreError, OSError) as error:
        logger.warning("That snapshot stays as it is: %s", error)
        said = Annotations(pinned=True)
    return Listed(said.over(info), said)
