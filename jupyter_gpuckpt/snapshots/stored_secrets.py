"""The secrets of a kernel in its snapshot, beside its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..engine.tree import kept_secrets
from ..wire.manifest_records import Manifest

if TYPE_CHECKING:
    from ..store.local import LocalStore


def of_snapshot(manifest: Manifest, store: LocalStore) -> dict[str, Any]:
    """Return the secrets of a snapshot's kernel. Raises ObjectCorrupt, StoreUnavailable."""
    stream = manifest.stream(kept_secrets.STREAM)
    if stream.length > kept_secrets.MAX_SECRETS_BYTES:
        return {}
    from ..images.unpack import read_stream  # noqa: PLC0415 - slow to import, and a launch does not need it

    return kept_secrets.decoded(read_stream(stream, store))
