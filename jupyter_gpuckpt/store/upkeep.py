"""Background work after the opening of a store, which may take long in a large store.

Snapshots without a record get one (all of them if the catalog was lost), and rows of packs that are
gone are deleted.
"""

from __future__ import annotations

import logging
import sqlite3
import threading

from ..errors import StoreError
from .index.catalog import Catalog
from .lock import StoreLock
from .snapshot_rows import Records

logger = logging.getLogger(__name__)


class Upkeep:
    """The background thread of a store; it is started only if there is work."""

    def __init__(self, catalog: Catalog, records: Records) -> None:
        self._catalog, self._records = catalog, records
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if catalog.untidy or not records.complete:
            self._thread = threading.Thread(target=self._run, name="store upkeep", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for its end; may be called again."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._catalog.purge(self._stop)
            for _ in self._records.all(stop=self._stop):
                if self._stop.is_set():
                    return
        except Exception as error:
            # Snapshots without a record are read on demand.
            level = logging.WARNING if isinstance(error, (StoreError, OSError)) else logging.ERROR
            logger.log(level, "Not all snapshots are recorded: %s", error)


def end_store(upkeep: Upkeep, catalog: Catalog, lock: StoreLock) -> None:
    """Stop the background work of a store, close its catalog and release its directory."""
    upkeep.stop()
    try:
        catalog.close()
    except sqlite3.Error as error:
        logger.warning("The catalog was not closed cleanly; the next opening checks it: %s", error)
    finally:
        lock.release()
