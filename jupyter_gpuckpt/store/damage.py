"""The snapshots of a store that lack chunks, or whose chunks are known to be damaged.

A file names them, because another process cannot open the store to find out (`jupyter gpuckpt doctor`).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..errors import SnapshotNotFound, StoreError
from ..wire import decoding
from . import manifests, stub_files
from .faults import store_errors

if TYPE_CHECKING:  # a report on this machine reads the file without opening the store
    from .index.catalog import Catalog
    from .snapshot_listing import Listing
    from .snapshot_rows import Records

_FILE = "damaged.json"


class Damage:
    """The finder of damaged snapshots. `manifests_directory`: the store's folder of manifests."""

    def __init__(
        self, manifests_directory: Path, listing: Listing, records: Records, catalog: Catalog
    ) -> None:
        self._manifests, self._listing = manifests_directory, listing
        self._records, self._catalog = records, catalog

    def note(self) -> list[str]:
        """Return the damaged snapshots and write their ids to the file that the doctor reads. Raises StoreUnavailable, StoreFull."""
        found = self.snapshots()
        note_damaged(self._manifests.parent, found)
        return found

    def snapshots(self) -> list[str]:
        """Return the ids of the damaged snapshots, as far as damage is known; stubs count only if what they keep is damaged.

        It is quick if there are none. Raises StoreUnavailable.
        """
        with store_errors(self._manifests):
            # A snapshot whose chunks were looked at again gets its record again.
            for name in self._incomplete():
                try:
                    self._records.of(name)
                except StoreError:  # its manifest cannot be read, which lists report
                    continue
            found = [name for name in self._incomplete() if self._listing.find_kept(name)]
            return [name for name in found if self._lacks_chunks(name)]

    def _incomplete(self) -> list[str]:
        def read(connection: sqlite3.Connection) -> list[str]:
            rows = connection.execute("SELECT name FROM snapshots WHERE needs IS NULL")
            return sorted(name for (name,) in rows)

        return self._catalog.database.run(read)

    def _lacks_chunks(self, snapshot_id: str) -> bool:
        path = manifests.path_of(self._manifests, snapshot_id)
        try:
            references = manifests.read(path, manifests.References)
        except SnapshotNotFound:  # it was deleted meanwhile
            return False
        except StoreError:
            return True
        stub = stub_files.read(path.with_suffix(stub_files.SUFFIX))
        digests = references.digests(stub.keeps if stub else None)
        found = self._catalog.locate(digests)
        if len(found) < len(digests):
            return True
        damaged = found.rows[found.rows["damaged"] != 0]
        # Chunks in packs that were not read yet may be intact.
        packs = {found.packs[number] for number in set(damaged["pack"].tolist())}
        return not packs <= self._catalog.doubted


def damaged_snapshots(root: Path) -> list[str]:
    """Return the ids of damaged snapshots; none if the store in `root` has no file, or one that cannot be read."""
    try:
        return decoding.from_json((root / _FILE).read_bytes(), list[str])
    except (OSError, msgspec.DecodeError):
        return []


def note_damaged(root: Path, snapshot_ids: list[str]) -> None:
    """Write these ids, unless the file has them. Raises StoreUnavailable, StoreFull."""
    with store_errors(root):
        if not snapshot_ids:
            (root / _FILE).unlink(missing_ok=True)
        elif snapshot_ids != damaged_snapshots(root):
            manifests.replace_file(root / _FILE, msgspec.json.encode(snapshot_ids))
