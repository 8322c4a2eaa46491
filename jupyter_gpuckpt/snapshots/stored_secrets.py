"""The secrets of a kernel in its snapshot: beside its memory, or where an older version stored them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..engine.tree import kept_secrets
from ..engine.tree.tree import Tree
from ..wire import manager_secrets
from ..wire.manifest_records import Manifest

if TYPE_CHECKING:
    from ..store.local import LocalStore

_log = logging.getLogger(__name__)


def of_snapshot(manifest: Manifest, store: LocalStore) -> dict[str, Any]:
    """Return the secrets of a snapshot's kernel. Raises ObjectCorrupt, StoreUnavailable."""
    if not _are_with_memory(manifest):
        return manager_secrets.parted(manifest.launch.jupyter)[1]
    stream = manifest.stream(kept_secrets.STREAM)
    if stream.length > kept_secrets.MAX_SECRETS_BYTES:
        return {}
    from ..images.unpack import read_stream  # noqa: PLC0415 - slow to import, and a launch does not need it

    return kept_secrets.decoded(read_stream(stream, store))


def keep(tree: Tree, secrets: dict[str, Any]) -> None:
    """Write secrets to a kernel's scratch, so that its next snapshot contains them; never raises."""
    try:
        kept_secrets.install(tree.inside("/"), secrets)
    except OSError as error:
        _log.error("the key of a kernel could not be stored: %s", error)


def keep_of_older(tree: Tree, manifest: Manifest, store: LocalStore) -> None:
    """Write the secrets of a kernel that was resumed from an older version's snapshot to its scratch; other kernels have them there."""
    if not _are_with_memory(manifest):
        keep(tree, of_snapshot(manifest, store))


def _are_with_memory(manifest: Manifest) -> bool:
    return any(stream.name == kept_secrets.STREAM for stream in manifest.streams)
