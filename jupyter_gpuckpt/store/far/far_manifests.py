"""Manifests on the remote: a snapshot's table of contents as the local store has it, and the packs that it needs.

Each attempt to upload a snapshot writes one under a name of its own; the far session says which one counts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec

from ... import ids
from ...errors import ManifestInvalid, StoreUnavailable
from ...model import Manifest
from .. import manifests
from ..codecs import digest_of
from .buckets import Bucket
from .far_packs import MOST_PACK_BYTES, PackRef
from .far_packs import is_name as is_pack_name
from .sealing import HEADER_BYTES, Seal, invalid

FOLDER = "manifests"
_MOST_PACKS = 1 << 20


class FarManifest(msgspec.Struct, frozen=True):
    """A manifest on the remote. `content`: the local store's file. `packs`: where its chunks lie."""

    snapshot_id: Annotated[str, msgspec.Meta(max_length=128)]
    content: bytes
    packs: Annotated[list[PackRef], msgspec.Meta(max_length=_MOST_PACKS)]

    def manifest(self) -> Manifest:
        """Return what the local store's file says, checked as every manifest is. Raises FarObjectInvalid, FormatTooNew."""
        path = manifests.path_of(Path(FOLDER), self.snapshot_id)
        try:
            return manifests.parse(path, self.content, Manifest)
        except ManifestInvalid as error:
            raise invalid(str(path), error.message) from error


def new_name(snapshot_id: str) -> str:
    """Return a name for an attempt to upload a snapshot."""
    return f"{FOLDER}/{snapshot_id}.{os.urandom(8).hex()}"


def snapshot_of(name: str) -> str | None:
    """Return the id of the snapshot that a manifest of this name is of; None where it is no manifest's name."""
    folder, _, rest = name.partition("/")
    snapshot_id, _, attempt = rest.rpartition(".")
    sound = len(attempt) == 16 and not attempt.strip("0123456789abcdef")
    return snapshot_id if folder == FOLDER and sound and ids.is_id(snapshot_id) else None


def is_name(name: str, snapshot_id: str) -> bool:
    """Whether a manifest of this snapshot can be called so."""
    return snapshot_of(name) == snapshot_id


def write(bucket: Bucket, seal: Seal, name: str, manifest: FarManifest) -> bytes:
    """Write a manifest; the digest of the object."""
    data = seal.seal_record(name, manifest)
    if not bucket.create(name, data):
        raise StoreUnavailable(f"{name} is in remote {bucket.name} already.", hint="Try again.")
    return digest_of(data)


def read(bucket: Bucket, seal: Seal, name: str, digest: bytes = b"") -> FarManifest:
    """Return a manifest, of which `digest` is known if it is given. Raises FarObjectInvalid, FarObjectMissing, FormatTooNew."""
    data = bucket.get(name).data
    if digest and digest_of(data) != digest:
        raise invalid(name, "it is another than the one that its session names")
    found = seal.open_record(name, data, FarManifest)
    if not is_name(name, found.snapshot_id) or not all(map(_sound, found.packs)):
        raise invalid(name, "it does not make sense")
    return found


def _sound(ref: PackRef) -> bool:
    return (
        is_pack_name(ref.name)
        and HEADER_BYTES + ref.index_length <= ref.length <= MOST_PACK_BYTES
        and ref.index_length > 0
    )
