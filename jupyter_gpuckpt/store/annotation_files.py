"""What a user may change of a snapshot: its title, its note, whether it is pinned, whether it is deleted.

A manifest never changes, so this lies beside it, in `manifests/<snapshot>.annotations`: JSON, replaced as a whole. A snapshot
without that file is as its manifest says. The file goes after the manifest; one without a manifest means nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from .. import decoding
from ..errors import FormatTooNew
from ..model import SnapshotInfo
from . import manifest_checks, manifests

logger = logging.getLogger(__name__)

SUFFIX = ".annotations"

_VERSION = 1


class Annotations(msgspec.Struct, frozen=True, omit_defaults=True):
    """None: as the manifest has it. Times are seconds since the epoch; 0: not deleted."""

    title: str | None = None
    note: str | None = None
    pinned: bool | None = None
    deleted_at: float = 0.0
    #: When a deleted snapshot goes for good.
    kept_until: float = 0.0

    @property
    def deleted(self) -> bool:
        """Whether the snapshot is there only until its deletion cannot be undone any more."""
        return self.deleted_at > 0

    def over(self, info: SnapshotInfo) -> SnapshotInfo:
        """What lists show, which the manifest has as `info`."""
        stated = {"title": self.title, "note": self.note, "pinned": self.pinned}
        changes = {name: value for name, value in stated.items() if value is not None}
        return msgspec.structs.replace(info, **changes) if changes else info


class _File(Annotations, frozen=True, omit_defaults=True):
    """As it is on the disk."""

    version: int = 0


def path_of(directory: Path, snapshot_id: str) -> Path:
    """Where those of this snapshot are. SnapshotNotFound for what cannot be an id."""
    return manifests.path_of(directory, snapshot_id).with_suffix(SUFFIX)


def read(path: Path) -> Annotations:
    """The annotations in `path`; none if there is no such file. Raises FormatTooNew, OSError.

    Damaged ones count as a pin: what cannot be read must not make a snapshot go.
    """
    try:
        return parse(path.name, path.read_bytes())
    except FileNotFoundError:
        return Annotations()
    except msgspec.DecodeError as error:
        logger.warning("%s is damaged, so that snapshot stays: %s", path, error)
        return Annotations(pinned=True)


def parse(name: str, data: bytes) -> Annotations:
    """What the content of a file means. Raises FormatTooNew, msgspec.DecodeError."""
    found = decoding.from_json(data, _File)
    if found.version > _VERSION:
        raise FormatTooNew(
            f"{name} has format version {found.version}; this version of jupyter-gpuckpt reads up to {_VERSION}.",
            hint="Upgrade jupyter-gpuckpt.",
        )
    if not all(map(manifest_checks.is_time, (found.deleted_at, found.kept_until))):
        raise msgspec.DecodeError("a time in it is none")
    fields = {name: getattr(found, name) for name in Annotations.__struct_fields__}
    return Annotations(**fields)


def encoded(annotations: Annotations) -> bytes:
    """The content of their file."""
    return msgspec.json.encode(_File(**msgspec.structs.asdict(annotations), version=_VERSION))


def write(path: Path, annotations: Annotations) -> None:
    """Replace them, also across a power cut. Raises OSError."""
    manifests.replace_file(path, encoded(annotations))
