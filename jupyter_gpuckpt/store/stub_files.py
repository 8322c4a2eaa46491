"""Files of stubs. While `manifests/<snapshot>.stub` exists, the chunks of that snapshot are in a remote and need not be here.

The manifest stays beside it. The file is removed before the snapshot counts as whole again, and after the manifest of a deleted
snapshot; a file without a manifest is ignored.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from ..wire import decoding, ids
from . import manifests
from .packs import sync_directory

logger = logging.getLogger(__name__)

SUFFIX = ".stub"

_VERSION = 1


class Stub(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The record of a snapshot whose chunks were removed. `remote`: the remote that has them; empty: unknown.

    `keeps`: names of the streams whose chunks stay here, because they are read without a resume; None: unknown, so that all chunks
    that are here stay.
    """

    remote: str = ""
    keeps: list[str] | None = None


class _File(Stub, frozen=True, omit_defaults=True, gc=False):
    """The stored form of a stub."""

    version: int = 0


def path_of(directory: Path, snapshot_id: str) -> Path:
    """Return the path of this snapshot's stub. Raises SnapshotNotFound for an invalid id."""
    return manifests.path_of(directory, snapshot_id).with_suffix(SUFFIX)


def read(path: Path) -> Stub | None:
    """Return the stub in `path`; None if there is no such file. Raises OSError.

    A damaged file still counts as a stub, because the chunks may be gone.
    """
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        logger.warning("%s is damaged; any remote may have the snapshot: %s", path, error)
        return Stub()


def parse(data: bytes) -> Stub:
    """Decode the content of a stub's file. Raises msgspec.DecodeError, also for a later version."""
    found = decoding.from_json(data, _File)
    if found.version > _VERSION:
        raise msgspec.DecodeError(f"it has format version {found.version}")
    if found.remote and not ids.is_id(found.remote):
        raise msgspec.DecodeError("it names no remote")
    return Stub(found.remote, found.keeps)


def write(path: Path, stub: Stub) -> None:
    """Write a stub; a power cut leaves the whole file or none. Raises OSError."""
    content = _File(**msgspec.structs.asdict(stub), version=_VERSION)
    manifests.replace_file(path, msgspec.json.encode(content))


def remove(path: Path) -> None:
    """Remove a stub, durably; do nothing if there is none. Raises OSError."""
    try:
        path.unlink()
    except FileNotFoundError:
        return
    sync_directory(path.parent)
