"""Scales for retention: the compressed bytes of the chunks of several snapshots, each chunk counted once.

Headers of chunks and packs are not counted, nor are chunks that no snapshot needs but that still exist: usually a few percent, and
never more than half of a pack (`repack.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import StoreError
from ..wire.manifest_records import SnapshotInfo
from .faults import store_errors
from .index.catalog import Catalog
from .index.needs import Needs, add, chosen_of
from .snapshot_rows import Records


class Weights:
    """The scales of one store, for one call of `retention.judge`; they are slow, so use them in a thread."""

    def __init__(self, root: Path, catalog: Catalog, records: Records) -> None:
        self._root, self._catalog, self._records = root, catalog, records
        self._on: Needs = {}
        self._lengths: dict[str, NDArray[Any] | None] = {}
        #: The needs that were read last, cached because a weighed snapshot is usually added next.
        self._read: tuple[str, Needs] = ("", {})

    def weight(self, info: SnapshotInfo) -> int:
        """Return the bytes that this snapshot takes in addition to those that were added.

        For an unreadable snapshot, return all bytes that its record states.
        """
        try:
            needs = self._needs(info)
        except StoreError:
            return info.sizes.stored_bytes
        with store_errors(self._root):
            return sum(self._weight(pack, bits) for pack, bits in needs.items())

    def add(self, info: SnapshotInfo) -> None:
        """Add this snapshot to those that are kept."""
        try:
            add(self._on, self._needs(info))
        except StoreError:  # the chunks that it shares are unknown
            return

    def _weight(self, pack: str, bits: NDArray[np.uint8]) -> int:
        if pack not in self._lengths:
            numbers = self._catalog.numbers(pack)
            self._lengths[pack] = None if numbers is None else numbers["stored_length"].copy()
        lengths = self._lengths[pack]
        if lengths is None:  # deleted meanwhile
            return 0
        new = bits & ~self._on[pack] if pack in self._on else bits
        return int(lengths[chosen_of(new, len(lengths))].sum(dtype=np.int64))

    def _needs(self, info: SnapshotInfo) -> Needs:
        if self._read[0] != info.snapshot_id:
            with store_errors(self._root):
                self._read = (info.snapshot_id, self._records.of(info.snapshot_id))
        return self._read[1]
