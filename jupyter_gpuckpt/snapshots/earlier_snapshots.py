"""The earlier snapshots of a kernel that is saved: the order in which the new one follows, and what it need not store again."""

from __future__ import annotations

import logging

from ..errors import StoreError
from ..images.composing import Predecessor
from ..store.local import LocalStore
from ..wire.snapshot_order import Making, next_number
from .gpu_tables import EarlierGpuMemory

logger = logging.getLogger(__name__)


class EarlierSnapshots:
    """The snapshots of a kernel in a store. If the list cannot be read it counts as empty: the kernel is saved all the same."""

    def __init__(self, store: LocalStore, kernel_id: str) -> None:
        self._store = store
        try:
            #: Newest first, deleted ones included: their numbers are not used again.
            self._listed = store.listed(kernel_id)
        except StoreError as error:
            logger.warning("The earlier snapshots of the kernel cannot be listed: %s", error)
            self._listed = []

    def number_of(self, new: Making) -> int:
        """Return the number of the kernel's next snapshot."""
        return new.number or next_number(new.above, *(one.info.number for one in self._listed))

    def predecessor(self) -> tuple[Predecessor | None, EarlierGpuMemory]:
        """Return the newest snapshot, so that the new one stores only changes, and its GPU memory.

        Where none can be read everything is stored.
        """
        newest = next((one.info for one in self._listed if not one.annotations.deleted), None)
        try:
            if newest is not None:
                streams = self._store.manifest(newest.snapshot_id).streams
                predecessor = Predecessor(streams)
                return predecessor, EarlierGpuMemory(streams, self._store, predecessor.digests)
        except StoreError as error:
            logger.warning(
                "Changed chunks are stored whole, because the previous snapshot cannot be read: %s",
                error,
            )
        return None, EarlierGpuMemory([], self._store)
