"""Files of annotations: title, note, pin, deletion and last use, which change after a save.

A manifest never changes, so annotations are in a file beside it, `manifests/<snapshot>.annotations`: JSON, replaced as a whole.
Without that file the manifest's values apply. The file is removed after the manifest; a file without a manifest is ignored.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec

from ..errors import FormatTooNew
from ..wire import decoding
from ..wire.deadlines import Deadline
from ..wire.manifest_records import SnapshotInfo
from . import manifest_checks, manifests

logger = logging.getLogger(__name__)

SUFFIX = ".annotations"

_VERSION = 1


class Annotations(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The changes of a snapshot since its save; None where the manifest's value applies.

    Times are seconds since the epoch; 0: not deleted.
    """

    title: str | None = None
    note: str | None = None
    pinned: bool | None = None
    deleted_at: float = 0.0
    #: When a deleted snapshot may be removed for good.
    kept: Deadline = Deadline()
    #: The time of the last resume from it; 0: none is known.
    used_at: float = 0.0

    @property
    def deleted(self) -> bool:
        """Whether the snapshot is deleted and kept only so that the deletion can be undone."""
        return self.deleted_at > 0

    @property
    def stated(self) -> dict[str, Any]:
        """The fields that replace those of the manifest."""
        stated = {"title": self.title, "note": self.note, "pinned": self.pinned}
        return {name: value for name, value in stated.items() if value is not None}

    def over(self, info: SnapshotInfo) -> SnapshotInfo:
        """Return `info`, from the manifest, with these changes applied."""
        return msgspec.structs.replace(info, **stated) if (stated := self.stated) else info


class _File(Annotations, frozen=True, omit_defaults=True, gc=False):
    """The stored form of annotations."""

    version: int = 0


def path_of(directory: Path, snapshot_id: str) -> Path:
    """Return the path of this snapshot's annotations. Raises SnapshotNotFound for an invalid id."""
    return manifests.path_of(directory, snapshot_id).with_suffix(SUFFIX)


def read(path: Path) -> Annotations:
    """Return the annotations in `path`, empty ones if there is no such file. Raises FormatTooNew, OSError.

    A damaged file counts as a pin: a snapshot must not be removed because its annotations cannot be read.
    """
    try:
        return parse(path.name, path.read_bytes())
    except FileNotFoundError:
        return Annotations()
    except msgspec.DecodeError as error:
        logger.warning("%s is damaged, so that snapshot is kept: %s", path, error)
        return Annotations(pinned=True)


def parse(name: str, data: bytes) -> Annotations:
    """Return the annotations in the content of a file. Raises FormatTooNew, msgspec.DecodeError."""
    found = decoding.from_json(data, _File)
    if found.version > _VERSION:
        raise FormatTooNew(
            f"{name} has format version {found.version}; this version of jupyter-gpuckpt reads up to {_VERSION}.",
            hint="Upgrade jupyter-gpuckpt.",
        )
    kept = found.kept
    times = (found.deleted_at, found.used_at, kept.at, kept.seconds, kept.since_boot)
    if not all(map(manifest_checks.is_time, times)):
        raise msgspec.DecodeError("it contains an invalid time")
    return Annotations(*(getattr(found, name) for name in Annotations.__struct_fields__))


def encoded(annotations: Annotations) -> bytes:
    """Return the content of the file that holds these annotations."""
    fields = msgspec.structs.asdict(annotations)
    return msgspec.json.encode(_File(**fields, version=_VERSION))


def write(path: Path, annotations: Annotations) -> None:
    """Replace the annotations in `path`; a power cut leaves the old ones or the new ones. Raises OSError."""
    manifests.replace_file(path, encoded(annotations))
