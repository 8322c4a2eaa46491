"""Removing packs that nothing refers to: mark and sweep over whole packs (`repack.py` looks after what is left in others)."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from ..errors import StoreError
from . import manifests
from .catalog import Catalog
from .leases import Leases

logger = logging.getLogger(__name__)


def needed_by(manifests_directory: Path) -> set[bytes] | None:
    """The chunks that manifests refer to; None when one cannot be read, since what it needs is unknown."""
    needed: set[bytes] = set()
    for path in manifests_directory.glob("*" + manifests.SUFFIX):
        try:
            needed |= manifests.read(path, manifests.References).digests()
        except (StoreError, OSError) as error:
            logger.warning("No packs are removed while a manifest cannot be read: %s", error)
            return None
    return needed


def collect(
    manifests_directory: Path,
    *,
    catalog: Catalog,
    leases: Leases,
    lock: threading.RLock,
) -> int:
    """Remove every pack of which no manifest and no lease needs a chunk; bytes that became free.

    The caller keeps manifests from being published meanwhile; writers go on, `lock` stops them only for a moment. When a
    manifest cannot be read nothing is removed. Raises OSError, sqlite3.OperationalError.
    """
    needed = needed_by(manifests_directory)
    if needed is None:
        return 0
    with lock:
        # Marking beside working writers is safe: packs that appear from here on are not candidates, and chunks of
        # candidates that a writer came to count on are under a lease by the time the lock is ours.
        candidates = catalog.packs_without(needed) - leased_packs(catalog, leases)
        freed = catalog.remove_packs(candidates) if candidates else 0
    if candidates:
        logger.info("Removed %d packs of %d bytes that nothing refers to.", len(candidates), freed)
    return freed


def leased_packs(catalog: Catalog, leases: Leases) -> set[str]:
    """Packs that an operation in flight counts on; the caller has the store's lock."""
    return {place.pack for place in catalog.locate(leases.held())}
