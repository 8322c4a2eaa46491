"""Remote manifests: the local store's manifest of a snapshot together with references to the remote packs that it needs.

Each attempt to upload a snapshot writes a remote manifest with a new name; the remote session names the valid one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec

from ..errors import ManifestInvalid, StoreUnavailable
from ..store import manifests
from ..store.codecs import digest_of
from ..wire import ids
from ..wire.manifest_records import Manifest
from .buckets import Bucket
from .pack_refs import MAX_PACK_BYTES, PackRef
from .pack_refs import is_name as is_pack_name
from .sealing import HEADER_BYTES, Seal, invalid

FOLDER = "manifests"
_MAX_PACKS = 1 << 20


class RemoteManifest(msgspec.Struct, frozen=True):
    """A remote manifest. `content`: the local store's file of the manifest. `packs`: the packs with its chunks."""

    snapshot_id: Annotated[str, msgspec.Meta(max_length=128)]
    content: bytes
    packs: Annotated[list[PackRef], msgspec.Meta(max_length=_MAX_PACKS)]
    #: The remote session that lists it.
    session_id: Annotated[str, msgspec.Meta(max_length=128)]

    def manifest(self) -> Manifest:
        """Return the manifest in `content`, with all checks of manifests. Raises RemoteObjectInvalid, FormatTooNew."""
        path = manifests.path_of(Path(FOLDER), self.snapshot_id)
        try:
            return manifests.parse(path, self.content, Manifest)
        except ManifestInvalid as error:
            raise invalid(str(path), error.message) from error


def new_name(snapshot_id: str) -> str:
    """Return a new name for the remote manifest of one attempt to upload a snapshot."""
    return f"{FOLDER}/{snapshot_id}.{os.urandom(8).hex()}"


def snapshot_of(name: str) -> str | None:
    """Return the id of the snapshot in a remote manifest's name; None if `name` is no such name."""
    folder, _, rest = name.partition("/")
    snapshot_id, _, attempt = rest.rpartition(".")
    sound = len(attempt) == 16 and not attempt.strip("0123456789abcdef")
    return snapshot_id if folder == FOLDER and sound and ids.is_id(snapshot_id) else None


def write(bucket: Bucket, seal: Seal, name: str, manifest: RemoteManifest) -> bytes:
    """Write a remote manifest; return the digest of the object."""
    data = seal.seal_record(name, manifest)
    if not bucket.create(name, data):
        raise StoreUnavailable(f"{name} is in remote {bucket.name} already.", hint="Try again.")
    return digest_of(data)


def read(bucket: Bucket, seal: Seal, name: str, digest: bytes = b"") -> RemoteManifest:
    """Return a remote manifest, compared with `digest` unless that is empty. Raises RemoteObjectInvalid or -Missing, FormatTooNew."""
    data = bucket.get(name).data
    if digest and digest_of(data) != digest:
        raise invalid(name, "it is not the object that its session lists")
    found = seal.open_record(name, data, RemoteManifest)
    if snapshot_of(name) != found.snapshot_id or not all(map(_sound, found.packs)):
        raise invalid(name, "its snapshot or a pack in it is impossible")
    return found


def _sound(ref: PackRef) -> bool:
    return (
        is_pack_name(ref.name)
        and HEADER_BYTES + ref.index_length <= ref.length <= MAX_PACK_BYTES
        and ref.index_length > 0
    )
