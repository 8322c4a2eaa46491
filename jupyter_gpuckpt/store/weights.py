"""What snapshots take in the store together, as `retention.py` asks: the compressed bytes of their chunks, each counted once.

The headers of chunks and packs are left out, and so is what no snapshot needs but is still there: a few per cent as a rule, and
never more than half of a pack (`repack.py`).
"""

from __future__ import annotations

from pathlib import Path

from ..errors import StoreError
from ..model import SnapshotInfo
from . import manifests
from .catalog import Catalog
from .faults import store_errors


class Weights:
    """Scales of one store, for one judgement. Reads manifests: to be used in a thread."""

    def __init__(self, root: Path, manifests_directory: Path, catalog: Catalog) -> None:
        self._root, self._manifests, self._catalog = root, manifests_directory, catalog
        self._on: set[bytes] = set()
        #: The last that was read: what is weighed is put on next, as a rule.
        self._read: tuple[str, set[bytes]] = ("", set())

    def weight(self, info: SnapshotInfo) -> int:
        """Bytes that it takes beside those that were put on; of one that cannot be read, all that it says it has."""
        try:
            new = self._digests(info) - self._on
        except StoreError:
            return info.sizes.stored_bytes
        with store_errors(self._root):
            return sum(self._catalog.known(new).values())

    def put_on(self, info: SnapshotInfo) -> None:
        """It stays."""
        try:
            self._on |= self._digests(info)
        except StoreError:  # what it shares is not known then
            return

    def _digests(self, info: SnapshotInfo) -> set[bytes]:
        if self._read[0] != info.snapshot_id:
            path = manifests.path_of(self._manifests, info.snapshot_id)
            with store_errors(self._root):
                digests = manifests.read(path, manifests.References).digests()
            self._read = (info.snapshot_id, digests)
        return self._read[1]
