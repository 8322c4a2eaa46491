"""The index of chunks in packs, kept in the store's database; it can be rebuilt from the packs at any time.

The packs are authoritative. Every opening compares the catalog with the folder. It indexes packs that the catalog does not know: after
a crash between a pack and its registration, or if the catalog is missing, damaged or from a backup. It drops packs that are gone.
Callers look up many digests at once. Changes of many rows are divided into turns of a few hundred rows, with turns of other threads in
between; after a crash the next opening starts such a change again.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .. import packs
from ..codecs import DIGEST_BYTES
from ..pack_identity import Identity
from ..packs import Entry
from . import rows
from .contents import Contents, numbers_in
from .database import Database, batches, broken, unsealed
from .indexing import contents_of
from .needs import Newest, forget_needing, newer_needs
from .pack_files import Facts, PackFiles
from .pack_folder import PackFolder
from .places import LOCATE, PlaceRows, Places, RecentPlaces, rows_of

logger = logging.getLogger(__name__)

_Item = TypeVar("_Item")

_KNOWN = (
    "SELECT group_concat(hex(digest) || stored_length) FROM chunks "
    "WHERE NOT damaged AND pack NOT IN temp.gone AND pack NOT IN temp.doubted AND"
)


class Catalog:
    """The index over all packs of a store; thread-safe. Raises sqlite3.OperationalError and OSError, which the store translates."""

    def __init__(self, path: Path, packs_directory: Path) -> None:
        #: Packs whose registration failed, with their lengths. Some of their chunks may be known, so they are removed by sweeps.
        self._half_registered: dict[str, int] = {}
        # Only one thread may purge at a time, because numbers of packs are reused.
        self._purging = threading.Lock()
        #: The number of times that known chunks changed their place.
        self.moves = 0
        #: What is known of the files of packs, and their folder.
        self.files = PackFiles()
        self.folder = PackFolder(packs_directory, self.files)
        #: The packs whose chunks count as damaged, because their files were changed from outside and not read since.
        self.doubted: frozenset[str] = frozenset()
        self._is_rebuilt, self._indexed_at = False, 0
        #: The same as `locate`, but quicker for what was looked up last.
        self.recent = RecentPlaces(self)
        self.database = Database(path, self._reconcile)
        try:
            self.database.run(self._reconcile)
        except BaseException:
            self.close()  # the next attempt would find the file locked
            raise

    def close(self) -> None:
        """Close the file; may be called again."""
        self.database.close()

    def known(self, digests: Collection[bytes]) -> dict[bytes, int]:
        """Return the stored lengths of those of `digests` that the store has and that are not known to be damaged."""
        recent = self.recent.known(digests)
        left = [digest for digest in digests if digest not in recent]
        if not left:
            return recent
        found = self.database.run(partial(rows.select, _KNOWN, left))
        known = ",".join(text for (text,) in found if text)
        return recent | {
            bytes.fromhex(item[: 2 * DIGEST_BYTES]): int(item[2 * DIGEST_BYTES :])
            for item in known.split(",")
            if item
        }

    def locate(self, digests: Collection[bytes]) -> Places:
        """Return the places of those of `digests` that the store has, in several turns."""
        numbers: dict[str, int] = {}
        # Batches follow the order of the table, in which neighbors are on the same page.
        parts = [
            self._places(numbers, partial(rows.select, LOCATE, batch))
            for batch in batches(sorted(digests))
        ]
        return Places(parts, list(numbers))

    def walk(self, numbers: dict[str, int]) -> Iterator[PlaceRows]:
        """Yield the places of all chunks in the order of digests; `numbers` receives a number for each pack."""
        for bounds in rows.parts():
            yield self._places(numbers, partial(rows.between, LOCATE, bounds))

    def _places(
        self, numbers: dict[str, int], ask: Callable[[sqlite3.Connection], list[Any]]
    ) -> PlaceRows:
        """Return the places that a query with `LOCATE` finds, in one turn."""

        def find(connection: sqlite3.Connection) -> PlaceRows:
            try:
                places = rows_of("".join(text for (text,) in ask(connection) if text))
            except ValueError as error:
                raise broken(str(error)) from error
            # The result has its own pack numbers: by the next turn the catalog's may belong to other packs.
            known, places["pack"] = np.unique(places["pack"], return_inverse=True)
            names = [
                name for batch in batches(known.tolist()) for name in rows.names(connection, batch)
            ]
            ours = [numbers.setdefault(name, len(numbers)) for name in names]
            places["pack"] = np.array(ours, np.uint64)[places["pack"]]
            return places

        return self.database.run(find)

    def add_pack(
        self, name: str, length: int, entries: Iterable[Entry], identity: Identity | None = None
    ) -> None:
        """Register a sealed pack. Known chunks keep their place, unless they are damaged there. `identity`: that of a file just written."""
        entries = list(entries)
        is_new = self.database.run(partial(rows.begin, name, Contents.of(entries)))
        try:
            if is_new:
                self.insert(name, entries)
            self.finish(name, length, identity=identity)
        except BaseException:
            if is_new:
                self._half_registered[name] = length
            raise

    def link(self, path: Path) -> None:
        """Add a sealed pack of another store to this one by a hard link."""
        if not self.names({path.stem}):
            entries = packs.read_index(path)
            packs.link(path, self.path_of(path.stem))
            self.add_pack(path.stem, path.stat().st_size, entries)

    def discard(self, pack: packs.PackFile) -> None:
        """Remove a new pack, unless it is registered (by a rebuild, or in part). Then others may rely on it, and a sweep removes it."""

        def discard(connection: sqlite3.Connection) -> None:
            if not rows.is_entered(connection, pack.name):
                pack.discard()

        try:
            self.database.run(discard)
        finally:
            pack.close()

    def begin_move(
        self, name: str, entries: Iterable[Entry], old: Iterable[str], newest: Newest
    ) -> bool:
        """Register that chunks will move from the packs `old` to the new pack `name`: `insert` moves them, `finish` ends the move.

        Until then no needed chunk may be removed from either. After a crash in between the chunks count as moved. Return False, and
        register nothing, if the database was rebuilt after `newest`: the new pack may have been removed since.
        """
        contents = Contents.of(entries)

        def begin(connection: sqlite3.Connection) -> bool:
            if newest.remakes != self.database.remakes:
                return False
            connection.executemany(
                "INSERT OR IGNORE INTO moving VALUES (?)", [(one,) for one in (name, *old)]
            )
            rows.begin(name, contents, connection)
            return True

        return self.database.run(begin)

    def insert(self, name: str, entries: Iterable[Entry], *, replace: bool = False) -> None:
        """Enter chunks of a pack that was begun; with `replace` even those that are known elsewhere."""

        def insert(batch: list[Entry], connection: sqlite3.Connection) -> None:
            # Without `replace` only chunks move that are damaged or gone, which no record mentions.
            self.moves += replace
            pack = rows.number_of(connection, name)
            rows.insert(connection, ((entry, pack) for entry in batch), replace=replace)

        self.database.change(sorted(entries), insert)

    def finish(
        self, name: str, length: int, old: Iterable[str] = (), identity: Identity | None = None
    ) -> None:
        """Complete the registration of a pack whose chunks are all entered.

        `old`: the packs from which chunks were moved. `identity`: that of its file, if this process has written it.
        """
        ended = [(one,) for one in (name, *old)]

        def finish(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE packs SET length = ? WHERE name = ?", (length, name))
            # Moves of other packs may still be in progress.
            connection.executemany("DELETE FROM moving WHERE name = ?", ended)
            if identity is not None:
                self.files.note(connection, name, Facts(identity, time.time()))

        self.database.run(finish)

    def lengths(self) -> dict[str, int]:
        """Return the names and lengths of all packs but those that are being registered."""
        half = self._half_registered.copy()
        registered = {name: length for name, length in self._all_packs() if length}
        return registered | {name: half[name] for name in self.names(half)}

    def names(self, among: Collection[str] | None = None) -> set[str]:
        """Return the names of all packs, or of those in `among`, including packs that are being registered."""
        if among is None:
            return {name for name, _ in self._all_packs()}
        return self.database.run(partial(rows.names_among, among))

    def _all_packs(self) -> Iterator[tuple[str, int]]:
        """Yield name and length of all packs, in several turns; the length of a pack that is being registered is 0."""
        last = 0
        while found := self.database.run(partial(rows.packs_after, last)):
            last = found[-1][0]
            yield from ((name, length) for _, name, length in found)

    def condemn(self, name: str, newest: Newest) -> bool:
        """Mark a pack as gone and return True; return False if a snapshot recorded after `newest` may need it."""

        def condemn(connection: sqlite3.Connection) -> bool:
            if newer_needs(name, newest, self.database.remakes, connection):
                return False
            self.moves += 1
            # The mark is only in memory, because the disk may be full: after a crash here no pack is removed.
            rows.drop(connection, name)
            self.folder.condemned.add(name)
            return True

        return self.database.run(condemn)

    def remove(self, names: Collection[str]) -> int:
        """Delete the files of condemned packs and their rows; return how many bytes became free."""
        freed = 0
        left = list(names)
        try:
            while left:
                path = self.path_of(left[-1])
                with suppress(FileNotFoundError):
                    length = path.stat().st_size
                    path.unlink()
                    freed += length
                left.pop()
            # Rows are deleted after files, because on a full disk SQLite needs the room that the files free.
            packs.sync_directory(self.folder.path)
        finally:
            self.database.run(partial(rows.spare, left))
            self.folder.condemned.difference_update(left)
            self.files.drop(set(names).difference(left))
        try:
            self.purge()
        except sqlite3.OperationalError as error:
            logger.warning("Rows of packs that are gone stay in the catalog for now: %s", error)
        self.folder.condemned.difference_update(names)
        return freed

    def purge(self, stop: threading.Event | None = None) -> None:
        """Delete the unused rows of packs that are gone, until `stop` is set."""
        with self._purging:
            while True:
                remakes = self.database.remakes
                pack = self.database.run(rows.first_gone)
                if pack is None:
                    return
                digests = self.database.run(partial(rows.digests_of, pack))

                def delete(
                    work: Callable[[list[Any], sqlite3.Connection], None],
                    some: list[Any],
                    connection: sqlite3.Connection,
                    remakes: int = remakes,
                ) -> None:
                    # A rebuilt database has given the number to another pack.
                    if self.database.remakes == remakes:
                        work(some, connection)

                for items, most, work in rows.deletions(pack, digests):
                    self.database.change(_until(stop, items), partial(delete, work), max_items=most)
                if stop is not None and stop.is_set():
                    return

    @property
    def untidy(self) -> bool:
        """Whether there are rows to purge."""
        return self.database.run(rows.first_gone) is not None

    def path_of(self, pack: str) -> Path:
        """Return the file of a pack."""
        return self.folder.path_of(pack)

    def contents(self, name: str) -> Contents | None:
        """Return the contents of a pack, read from the pack if the catalog lacks them; None if the pack is not known."""

        found = self.database.run(partial(rows.contents_of, name))
        if found is None:
            return None
        pack = found[0]
        numbers, digests = (unsealed(str(pack), column) for column in found[1:])
        if numbers is not None and digests is not None:
            return Contents(numbers_in(numbers), digests)
        made = contents_of(self.path_of(name))
        if made is None:
            made = Contents.of(self.database.run(partial(rows.entries, pack=pack)))
        contents = made

        def keep(connection: sqlite3.Connection) -> None:
            # Bitmaps that were made with other contents are invalid.
            forget_needing(connection, [name])
            query = "SELECT 1 FROM packs WHERE id = ? AND name = ?"
            if connection.execute(query, (pack, name)).fetchone():
                rows.put_contents(connection, pack, contents)

        self.database.run(keep)
        return contents

    def numbers(self, name: str) -> NDArray[Any] | None:
        """Return only the column `numbers` of `contents`, which is faster to read."""

        found = self.database.run(partial(rows.numbers_of, name))
        numbers = unsealed(str(found[0]), found[1]) if found else None
        if numbers is not None:
            return numbers_in(numbers)
        contents = self.contents(name)
        return None if contents is None else contents.numbers

    def mark_damaged(self, digest: bytes) -> None:
        """Record that a chunk does not match its digest; the next writer that has it stores it again."""

        def mark(connection: sqlite3.Connection) -> None:
            self.moves += 1
            # The chunk may soon be stored elsewhere.
            holders = rows.holders(connection, [digest])
            forget_needing(connection, holders)
            query = "UPDATE chunks SET damaged = 1 WHERE digest = ? AND NOT damaged"
            if connection.execute(query, (digest,)).rowcount:
                self.files.note_damage(connection, holders)

        try:
            self.database.run(mark)
        except sqlite3.OperationalError as error:
            # An error of a full or read-only disk must not replace the damage that the caller reports.
            logger.warning("The damage of chunk %s could not be recorded: %s", digest.hex(), error)

    def index_again(self) -> bool:
        """Index packs that were removed, changed or put back; if there are none, all packs, but only once.

        Return whether chunks may have been found.
        """
        # The time tells whether a file came or went.
        time_of_folder = self.folder.path.stat().st_mtime_ns
        if time_of_folder != self._indexed_at:
            self._indexed_at = time_of_folder
            if self.refresh():
                return True
        if self._is_rebuilt:
            return False
        self._is_rebuilt = True
        self.database.remake()
        return True

    def refresh(self) -> bool:
        """Index packs that were removed, changed or put back; return whether there were any."""

        def refresh(connection: sqlite3.Connection) -> bool:
            is_changed = self.folder.refresh(connection)
            self.moves += is_changed
            return is_changed

        return self.database.run(refresh)

    def _reconcile(self, connection: sqlite3.Connection) -> None:
        """Update the catalog to match the folder of packs."""
        self.moves += 1
        self.files.load(connection)
        self.folder.reconcile(connection)
        rows.doubt(connection, self.doubted)


def _until(stop: threading.Event | None, items: Iterable[_Item]) -> Iterator[_Item]:
    """Yield `items` until `stop` is set."""
    for item in items:
        if stop is not None and stop.is_set():
            return
        yield item
