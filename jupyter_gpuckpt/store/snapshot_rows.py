"""Records of snapshots in the database: their entries in lists and the chunks that they need, without reading manifests.

The manifests are authoritative. A record is valid while the files of its manifest and stub (`stubs.py`) are the ones from which it was
made; otherwise it is made again. A stub needs only the streams that it keeps. A record has no needs if a chunk is missing or damaged,
because the next save may store that chunk anywhere.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import SnapshotNotFound, StoreError
from ..wire import decoding
from ..wire.manifest_records import SnapshotInfo
from . import manifests, stub_files
from .index.catalog import Catalog
from .index.database import sealed, unsealed
from .index.needs import Needs, Newest, add, chosen_of, decoded, encoded, newer_needs, pack_bits
from .index.places import Located, PlaceIndex, Places, unique

logger = logging.getLogger(__name__)

# A record with other fields was written by another version and may lack some.
_FIELDS = ",".join(SnapshotInfo.__struct_fields__)
# The least number of snapshots for which it pays off to build an index of all chunks first.
_MANY = 100
# The number of snapshots read in one turn: each has some kilobytes.
_AT_ONCE = 50
# The same for snapshots without their needs.
_INFOS_AT_ONCE = 500


class FreshPlaces(NamedTuple):
    """The places of a snapshot's chunks, and the catalog's count of moves before they were looked up."""

    moves: int
    places: Places


class _LookUp(NamedTuple):
    """The result of a look-up, as bitmaps per pack. `complete`: all chunks exist. `moves`: the catalog's count at the look-up."""

    needs: Needs
    complete: bool
    moves: int


class Records:
    """The records of one store. Thread-safe. Raises sqlite3.OperationalError and OSError, which the store translates."""

    def __init__(self, manifests_directory: Path, catalog: Catalog) -> None:
        self._manifests, self._catalog = manifests_directory, catalog
        self._reading = threading.Lock()
        self._index: PlaceIndex | None = None

    def infos(self) -> dict[str, tuple[str, SnapshotInfo]]:
        """Return, for every recorded snapshot, the identity of its manifest and its entry in lists."""

        found: dict[str, tuple[str, SnapshotInfo]] = {}
        last = 0
        while rows := self._catalog.database.run(partial(_infos_after, last)):
            last = rows[-1][0]
            for _, name, identity, data in rows:
                info = unsealed(name + identity + _FIELDS, data)
                if info is not None:
                    with suppress(msgspec.DecodeError):  # a record of another version
                        found[name] = (identity, decoding.from_msgpack(info, SnapshotInfo))
        return found

    def newest(self) -> Newest:
        """Return the latest record."""

        def read(connection: sqlite3.Connection) -> Newest:
            (number,) = connection.execute("SELECT max(number) FROM snapshots").fetchone()
            return Newest(number or 0, self._catalog.database.remakes)

        return self._catalog.database.run(read)

    def add(
        self,
        info: SnapshotInfo,
        digests: Collection[bytes],
        identity: str,
        located: FreshPlaces | None = None,
    ) -> Needs:
        """Record the content of a manifest whose file had this `identity`; return those of its chunks that the store has.

        `located`: where its chunks were a moment ago, so that they need not be looked up again.
        """
        while True:
            found, located = self._look_up(digests, located), None
            if self._catalog.database.run(partial(self._put, info, identity, found)):
                return found.needs

    def identity(self, snapshot_id: str) -> str:
        """Return the identity of a snapshot's manifest and stub files; empty if there is no manifest. Raises OSError."""
        path = manifests.path_of(self._manifests, snapshot_id)
        return joint_identity(identity_of(path), identity_of(path.with_suffix(stub_files.SUFFIX)))

    def forget(self, gone: dict[str, str]) -> None:
        """Delete the records of snapshots that are gone; `gone`: their ids, with the identities that their manifests had.

        Records of newer snapshots of these ids stay.
        """
        query = "DELETE FROM snapshots WHERE name = ? AND identity = ?"
        try:
            self._catalog.database.run(
                lambda connection: connection.executemany(query, gone.items())
            )
        except sqlite3.OperationalError as error:  # the disk may be full; `all` finds the records
            logger.warning("Records of removed snapshots stay for now: %s", error)

    def of(self, snapshot_id: str) -> Needs:
        """Return the chunks that a snapshot needs. Raises SnapshotNotFound, ManifestInvalid, FormatTooNew."""
        identity = self.identity(snapshot_id)

        def read(connection: sqlite3.Connection) -> list[_Row]:
            query = f"{_ROWS} WHERE name = ?"
            return [_Row(*row) for row in connection.execute(query, (snapshot_id,))]

        for row in self._catalog.database.run(read):
            needs = row.read() if row.identity == identity else None
            # A record that names missing packs was left by a catalog that lost other rows.
            if needs is not None and needs.keys() <= self._catalog.names(needs.keys()):
                return needs
        return self._read(snapshot_id)

    def all(
        self,
        unreadable: Callable[[StoreError | OSError], None] = lambda error: None,
        stop: threading.Event | None = None,
    ) -> Iterator[tuple[str, Needs]]:
        """Yield every snapshot with those of its chunks that the store has; record those that are not recorded yet.

        `unreadable` is called with the error of each manifest that cannot be read, and may raise. Once `stop` is set the next item
        comes soon.
        """
        identities = identities_in(self._manifests)
        waiting = {
            name.removesuffix(manifests.SUFFIX)
            for name in identities
            if name.endswith(manifests.SUFFIX)
        }
        last, stale, packs = 0, dict[str, str](), self._catalog.names()
        while rows := self._catalog.database.run(partial(_rows_after, last)):
            last = rows[-1].number
            for row in rows:
                stub = identities.get(row.name + stub_files.SUFFIX, "")
                identity = joint_identity(identities.get(row.name + manifests.SUFFIX, ""), stub)
                needs = row.read() if row.identity == identity else None
                if needs and not needs.keys() <= packs:
                    packs = self._catalog.names()
                    if not needs.keys() <= packs:
                        continue
                if needs is not None and row.name in waiting:
                    waiting.remove(row.name)
                    yield row.name, needs
                elif row.name + manifests.SUFFIX not in identities:
                    stale[row.name] = row.identity
        gone = {name: was for name, was in stale.items() if not self.identity(name)}
        if gone:
            self.forget(gone)
        yield from self._rest(waiting, unreadable, stop)

    def _rest(
        self,
        waiting: set[str],
        unreadable: Callable[[StoreError | OSError], None],
        stop: threading.Event | None,
    ) -> Iterator[tuple[str, Needs]]:
        """Yield the snapshots of `all` that have to be read from their manifests."""
        index = None
        try:
            for name in sorted(waiting):
                try:
                    # Only one thread reads at a time; snapshots that another thread read meanwhile are recorded.
                    with self._reading:
                        if len(waiting) >= _MANY and self._index is None:
                            index = self._index = PlaceIndex(self._catalog, stop)
                        found = self.of(name)
                    yield name, found
                except SnapshotNotFound:  # deleted meanwhile
                    continue
                except (StoreError, OSError) as error:
                    unreadable(error)
        finally:
            if index is not None:
                self._index = None

    def newer_needs(self, pack: str, newest: Newest) -> bool:
        """Return whether a snapshot recorded after `newest` may need a chunk of this pack."""
        database = self._catalog.database
        return database.run(lambda c: newer_needs(pack, newest, database.remakes, c))

    def move(self, moves: dict[str, NDArray[np.int64]], name: str, count: int) -> None:
        """Change the records of snapshots whose chunks moved to the pack `name`, which has `count` chunks.

        `moves`: for each old pack, the position in the new pack of every chunk; -1 for a chunk that stayed.
        """
        last = 0
        while rows := self._catalog.database.run(partial(_rows_after, last)):
            last = rows[-1].number
            changes = []
            for row in rows:
                needs = row.read()
                if needs is not None and not moves.keys().isdisjoint(needs):
                    moved = sealed(
                        row.name + row.identity, encoded(_moved(needs, moves, name, count))
                    )
                    changes.append((moved, row.number, row.needs))
            if changes:
                self._catalog.database.run(partial(_change, changes))

    @property
    def complete(self) -> bool:
        """Whether every snapshot is recorded."""

        def read(connection: sqlite3.Connection) -> set[str]:
            rows = connection.execute("SELECT name FROM snapshots WHERE needs IS NOT NULL")
            return {name + manifests.SUFFIX for (name,) in rows}

        there = {path.name for path in self._manifests.glob("*" + manifests.SUFFIX)}
        return there <= self._catalog.database.run(read)

    def _read(self, snapshot_id: str) -> Needs:
        # The identity is read first, so that content and identity of two different files are never combined.
        identity = self.identity(snapshot_id)
        path = manifests.path_of(self._manifests, snapshot_id)
        found = manifests.read(path, manifests.References)
        stub = stub_files.read(path.with_suffix(stub_files.SUFFIX))
        digests = found.digests(stub.keeps if stub else None)
        return self.add(found.info, digests, identity)

    def _look_up(self, digests: Collection[bytes], known: FreshPlaces | None = None) -> _LookUp:
        index, moves = self._index, known.moves if known else self._catalog.moves
        if known is None and index is not None and index.usable and index.moves == moves:
            located = index.find(digests)
        else:
            places = known.places if known else self._catalog.locate(digests)
            rows = places.rows
            complete = len(rows) == len(unique(digests)) and not np.any(rows["damaged"])
            located = Located(list(places.packs), rows["pack"], rows["offset"], complete)
        needs: Needs = {}
        complete = located.complete
        for number, offsets in _by_pack(located):
            name = located.names[number]
            bits = self._bits(name, offsets)
            if bits is None:
                complete = False
            else:
                needs[name] = bits
        return _LookUp(needs, complete, moves)

    def _bits(self, name: str, offsets: NDArray[np.uint64]) -> NDArray[np.uint8] | None:
        numbers = self._catalog.numbers(name)
        if numbers is None:
            return None
        at = np.searchsorted(numbers["offset"], offsets)
        if np.any(at >= len(numbers)) or np.any(numbers["offset"][at] != offsets):
            return None
        chosen = np.zeros(len(numbers), np.bool_)
        chosen[at] = True
        return pack_bits(chosen)

    def _put(
        self, info: SnapshotInfo, identity: str, found: _LookUp, connection: sqlite3.Connection
    ) -> bool:
        """Record a snapshot; return False if chunks have moved since they were looked up.

        Nothing is recorded if the manifest was removed or replaced meanwhile: the newer manifest has its own record.
        """
        if self._catalog.moves != found.moves:
            return False
        name = info.snapshot_id
        if not identity or identity != self.identity(name):
            return True
        needs = sealed(name + identity, encoded(found.needs)) if found.complete else None
        record = sealed(name + identity + _FIELDS, msgspec.msgpack.encode(info))
        # An existing record keeps its number: a snapshot that lacks a chunk is recorded again each time that it is read.
        row = (record, needs, name, identity)
        query = "UPDATE snapshots SET info = ?, needs = ? WHERE name = ? AND identity = ?"
        if not connection.execute(query, row).rowcount:
            query = (
                "INSERT OR REPLACE INTO snapshots (info, needs, name, identity) VALUES (?, ?, ?, ?)"
            )
            connection.execute(query, row)
        return True


def _by_pack(located: Located) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Yield the number of each pack, and the offsets in it."""
    order = np.argsort(located.pack, kind="stable")  # quick, because they are in order already
    numbers, firsts = np.unique(located.pack[order], return_index=True)
    parts = np.split(located.offset[order], firsts[1:])
    yield from zip(numbers.tolist(), parts, strict=len(numbers) > 0)


class _Row(NamedTuple):
    """A row of the table `snapshots`."""

    number: int
    name: str
    identity: str
    info: bytes
    needs: bytes | None

    def read(self) -> Needs | None:
        """Return the snapshot's needs, if they are recorded and intact."""
        name = self.name + self.identity
        data = unsealed(name, self.needs)
        if data is None or unsealed(name + _FIELDS, self.info) is None:
            return None
        return decoded(data)


_ROWS = "SELECT number, name, identity, info, needs FROM snapshots"


def _infos_after(number: int, connection: sqlite3.Connection) -> list[tuple[int, str, str, bytes]]:
    query = "SELECT number, name, identity, info FROM snapshots WHERE number > ? ORDER BY number LIMIT ?"
    return connection.execute(query, (number, _INFOS_AT_ONCE)).fetchall()


def _rows_after(number: int, connection: sqlite3.Connection) -> list[_Row]:
    query = f"{_ROWS} WHERE number > ? ORDER BY number LIMIT {_AT_ONCE}"
    return [_Row(*row) for row in connection.execute(query, (number,))]


def _change(changes: list[tuple[bytes, int, bytes | None]], connection: sqlite3.Connection) -> None:
    query = "UPDATE snapshots SET needs = ? WHERE number = ? AND needs = ?"
    connection.executemany(query, changes)


def _moved(needs: Needs, moves: dict[str, NDArray[np.int64]], name: str, count: int) -> Needs:
    after = dict(needs)
    for old in moves.keys() & needs.keys():
        chosen = np.flatnonzero(chosen_of(after.pop(old), len(moves[old])))
        to = moves[old][chosen]
        there = np.zeros(count, np.bool_)
        there[to[to >= 0]] = True
        add(after, {name: pack_bits(there)})
        if np.any(to < 0):
            left = np.zeros(len(moves[old]), np.bool_)
            left[chosen[to < 0]] = True
            after[old] = pack_bits(left)
    return after


def identity_of(path: Path | os.DirEntry[str]) -> str:
    """Return the identity of a file, which differs for another file of the same name; empty if there is none. Raises OSError."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return ""
    return f"{facts.st_ino}-{facts.st_size}-{facts.st_mtime_ns}"


def joint_identity(manifest: str, stub: str) -> str:
    """Return a snapshot's identity from those of its files; `stub` is empty if its chunks are here."""
    return f"{manifest}+{stub}" if manifest and stub else manifest


def identities_in(directory: Path) -> dict[str, str]:
    """Return the identities of all files in a folder by name, empty ones where stat fails. Raises OSError."""
    identities = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            identities[entry.name] = ""
            with suppress(OSError):  # reading the file reports it
                identities[entry.name] = identity_of(entry)
    return identities
