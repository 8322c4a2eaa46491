"""Removal of unreferenced packs: mark and sweep of whole packs (`repack.py` rewrites those that are partly needed).

Saves, lists and other deletions continue meanwhile, because marking does not lock the store. Chunks that a save relies on have a pin
in use until its snapshot is recorded. So each candidate is checked again under the store's lock, against pins in use and newer records,
before it counts as gone.
"""

from __future__ import annotations

import logging
import threading

from ..errors import StoreError
from .chunks_in_use import PinsInUse
from .index.catalog import Catalog
from .index.needs import Needs, Newest, union
from .snapshot_rows import Records

logger = logging.getLogger(__name__)


def needed_by_all(records: Records) -> Needs | None:
    """Return the chunks that any snapshot needs; None if a manifest cannot be read, because its needs are unknown."""

    def give_up(error: StoreError | OSError) -> None:
        raise error

    try:
        return union(needs for _, needs in records.all(give_up))
    except (StoreError, OSError) as error:
        logger.warning("No packs are removed while a manifest cannot be read: %s", error)
        return None


class Collector:
    """A collector of the unneeded packs of one store. `lock`: the store's, which guards the pins in use."""

    def __init__(
        self, records: Records, *, catalog: Catalog, in_use: PinsInUse, lock: threading.RLock
    ) -> None:
        self._records, self._catalog, self._in_use, self._lock = records, catalog, in_use, lock
        self._alone = threading.Lock()

    def run(self) -> int:
        """Remove every pack of which no manifest and no pin in use needs a chunk; return the number of bytes freed.

        Nothing is removed if a manifest cannot be read. Raises OSError, sqlite3.OperationalError.
        """
        with self._alone:
            # The order matters: a snapshot that needs one of these packs is either marked, or recorded after `newest`.
            newest, there = self._records.newest(), self._catalog.lengths()
            needed = needed_by_all(self._records)
            if needed is None:
                return 0
            condemned = [
                name for name in sorted(there) if name not in needed and self._condemn(name, newest)
            ]
            if not condemned:
                return 0
            freed = self._catalog.remove(condemned)
        logger.info("Removed %d unreferenced packs, %d bytes.", len(condemned), freed)
        return freed

    def _condemn(self, name: str, newest: Newest) -> bool:
        contents = self._catalog.contents(name)
        if contents is None:
            return False
        digests = list(contents.each_digest())
        with self._lock:
            return not self._in_use.any_of(digests) and self._catalog.condemn(name, newest)
