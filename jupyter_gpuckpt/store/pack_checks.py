"""Checks of packs that something else may have changed, cut short or removed since this package wrote them.

Covers: the look at all packs before an operation relies on the catalog, the look at those of a snapshot before its kernel is killed,
what is recorded when a pack was read. Does not cover: reading packs (pack_reading.py), when that is done (daemon/scrub/scrubbing.py).

A look at a pack takes about 5 us. Chunks of packs that are gone, shorter or changed do not count as stored any more, so the next save that
has their bytes stores them again. A pack of which only inode or time of change of status differ is relied on, because backups and links
change these, too; but a suspend that has the time reads it first.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .faults import store_errors
from .index import rows
from .index.catalog import Catalog
from .index.needs import forget_needing
from .index.pack_files import Facts
from .index.places import digests_in
from .pack_identity import Identity, Trust
from .pack_reading import PackReading

logger = logging.getLogger(__name__)


class Found(NamedTuple):
    """What a look at the packs of some chunks found.

    `lost`: how many chunks are missing, damaged, or in packs that were changed; `unread`: the digests of chunks in packs that are
    relied on without having been read.
    """

    lost: int
    unread: list[bytes]


class PackChecks:
    """The checks of the packs of one store. Thread-safe. Methods raise StoreUnavailable and StoreFull."""

    def __init__(self, root: Path, catalog: Catalog) -> None:
        self._root, self._catalog = root, catalog

    def look(self) -> dict[str, Trust]:
        """Compare all packs with what is known of them; from now on no operation relies on those that are gone or were changed.

        Return how much each pack can be relied on; those that are gone or have another length are left out.
        """
        with store_errors(self._root):
            catalog = self._catalog
            lengths, found = catalog.lengths(), catalog.folder.found()
            other = [n for n, size in lengths.items() if n not in found or found[n].length != size]
            # One may have been removed by a collection meanwhile.
            if other and catalog.names(other) and catalog.refresh():
                lengths, found = catalog.lengths(), catalog.folder.found()
            trusts = {n: self._judged(n, one) for n, one in found.items()}
            self._doubt({n for n, trust in trusts.items() if trust is Trust.CHANGED})
        return {n: trust for n, trust in trusts.items() if lengths.get(n) == found[n].length}

    def _doubt(self, names: set[str]) -> None:
        if names == self._catalog.doubted:
            return
        if new := names - self._catalog.doubted:
            logger.warning("Packs were changed by another program: %s", ", ".join(sorted(new)))

        def doubt(connection: sqlite3.Connection) -> None:
            # Their chunks may soon be stored elsewhere.
            forget_needing(connection, names - self._catalog.doubted)
            self._catalog.moves += 1
            rows.doubt(connection, names)

        self._catalog.database.run(doubt)
        self._catalog.doubted = frozenset(names)

    def holders(self, digests: Collection[bytes], among: Collection[str]) -> list[str]:
        """Return which of the packs `among` have some of these chunks."""
        if not among:
            return []
        with store_errors(self._root):
            found = self._catalog.recent.locate(digests)
        packs = {found.packs[number] for number in np.unique(found.rows["pack"]).tolist()}
        return sorted(packs.intersection(among))

    def find(self, digests: Collection[bytes]) -> Found:
        """Look at the packs with these chunks."""
        with store_errors(self._root):
            found = self._catalog.recent.locate(digests)
            trusts = [self._trust_in(name) for name in found.packs]
        trust = np.array(trusts, np.int64)[found.rows["pack"]]
        lost = (trust == Trust.CHANGED) | (found.rows["damaged"] != 0)
        unread = digests_in(found.rows[(trust == Trust.UNREAD) & ~lost])
        return Found(len(digests) - len(found) + int(lost.sum()), unread)

    def _trust_in(self, name: str) -> Trust:
        """Return how much a pack can be relied on. One that is gone counts as changed, and so does one of another length."""
        try:
            identity = Identity.of(self._catalog.path_of(name).stat())
        except FileNotFoundError:
            return Trust.CHANGED
        return self._judged(name, identity)

    def _judged(self, name: str, identity: Identity) -> Trust:
        """Return how much a pack whose file has this identity can be relied on."""
        trust = self._catalog.files.trust(name, identity)
        # A change of the mode is a change of status, too.
        if trust is Trust.UNREAD and not os.access(self._catalog.path_of(name), os.R_OK):
            return Trust.CHANGED
        return trust

    def due(self, every_seconds: float) -> list[str]:
        """Look at all packs; return those to read: those that are not the files that were read last, then those read long ago."""
        trusts, now = self.look(), time.time()
        other = [name for name, trust in trusts.items() if trust < Trust.SAME]
        checked = {
            name: facts.checked_at
            for name, trust in trusts.items()
            if trust is Trust.SAME and (facts := self._catalog.files.find(name)) is not None
        }
        old = [name for name, at in checked.items() if not 0 <= now - at < every_seconds]
        return [
            *sorted(other, key=lambda name: trusts[name]),
            *sorted(old, key=lambda name: checked[name]),
        ]

    def note(self, name: str, reading: PackReading) -> int:
        """Record that a pack was read, and which of its chunks are damaged; return their number."""
        catalog = self._catalog
        with store_errors(self._root):
            remakes, contents = catalog.database.remakes, catalog.contents(name)
            if contents is None:
                return 0
            damaged = [(one, one not in reading.intact) for one in contents.each_digest()]
            count, before = sum(is_ for _, is_ in damaged), catalog.files.find(name)

            def mark(some: list[tuple[bytes, bool]], connection: sqlite3.Connection) -> None:
                catalog.moves += 1
                rows.mark(connection, name, some)

            def end(connection: sqlite3.Connection) -> bool:
                # A rebuilt database does not know what was marked before.
                if catalog.database.remakes != remakes:
                    return False
                if count:
                    # The damaged ones may soon be stored elsewhere.
                    forget_needing(connection, [name])
                catalog.moves += 1
                catalog.files.note(connection, name, Facts(reading.identity, time.time(), count))
                rows.doubt(connection, catalog.doubted - {name})
                return True

            if count or before is None or before.damaged:
                catalog.database.change(damaged, mark)
            if catalog.database.run(end):
                catalog.doubted -= {name}
        if count:
            logger.error("Pack %s is damaged: %d of its chunks were altered.", name, count)
        return count
