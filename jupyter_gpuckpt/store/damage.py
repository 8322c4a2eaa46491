"""The snapshots of a store that lack chunks, or whose chunks are known to be damaged.

A file in the store's folder names them, because another process cannot open the store to find out (`jupyter gpuckpt doctor`).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from .. import decoding
from ..errors import SnapshotNotFound, StoreError
from . import manifests, stub_files
from .catalog import Catalog
from .faults import store_errors
from .records import Records

_FILE = "damaged.json"


class Damage:
    """The finder of damaged snapshots. `manifests_directory`: the store's folder of manifests."""

    def __init__(self, manifests_directory: Path, records: Records, catalog: Catalog) -> None:
        self._manifests, self._records, self._catalog = manifests_directory, records, catalog

    def note(self) -> list[str]:
        """Return what `snapshots` returns, and write it to the file. Raises StoreUnavailable, StoreFull."""
        found = self.snapshots()
        path = self._manifests.parent / _FILE
        with store_errors(self._manifests):
            if not found:
                path.unlink(missing_ok=True)
            elif found != noted(path.parent):
                manifests.replace_file(path, msgspec.json.encode(found))
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
            return [name for name in self._incomplete() if self._lacks_chunks(name)]

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


def noted(root: Path) -> list[str]:
    """Return the ids in the file of the store in `root`; none if it has no file, or one that cannot be read."""
    try:
        return decoding.from_json((root / _FILE).read_bytes(), list[str])
    except (OSError, msgspec.DecodeError):
        return []
