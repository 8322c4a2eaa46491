"""Which pack holds which chunk: a SQLite file that can be made again from the packs at any time.

The packs are the truth. At every opening the catalog is compared with the folder: packs that it does not know are read in
(a crash between a pack and its registration, or a catalog that is missing, damaged or from a backup), packs that are gone are
dropped. One process has it open; its threads share one connection, so callers ask for many digests at once.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..errors import FormatTooNew, ObjectCorrupt
from . import packs
from .codecs import DIGEST_BYTES
from .packs import Entry
from .places import LOCATE, PlaceRows, Places, checksum_of, rows_of

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS packs (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, length INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS chunks (
    digest BLOB PRIMARY KEY, pack INTEGER NOT NULL, offset INTEGER NOT NULL, stored_length INTEGER NOT NULL,
    raw_length INTEGER NOT NULL, codec INTEGER NOT NULL, checksum INTEGER NOT NULL, damaged INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
"""
_SELECT = (
    "SELECT packs.name, offset, digest, stored_length, raw_length, codec "
    "FROM chunks JOIN packs ON packs.id = chunks.pack"
)
_NAMES = "SELECT id, name FROM packs WHERE"
#: The oldest SQLite allows 999 parameters in a statement.
_BATCH = 500
# At most; SQLite's own 2 MB are read again and again when a resume looks up 100,000 chunks.
_CACHE_KIB = 64 << 10
_BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class Catalog:
    """The index over all packs of a store; thread-safe. Raises sqlite3.OperationalError and OSError, which the store translates."""

    def __init__(self, path: Path, packs_directory: Path) -> None:
        self._path, self._packs = path, packs_directory
        self._lock = threading.RLock()
        # Held while waiting for the lock, never by who has it.
        self._turn = threading.Lock()
        try:
            self._connection = self._open()
        except sqlite3.DatabaseError as error:
            if not _is_broken(error):
                raise
            self._remake(error)
        self._run(self._reconcile)

    def close(self) -> None:
        """Close the file; may be called again."""
        with self._lock:
            self._connection.close()

    def known(self, digests: Collection[bytes]) -> dict[bytes, int]:
        """Stored length of those of `digests` that the store holds, as far as is known undamaged."""
        found = self._run(
            lambda: self._select(
                "SELECT group_concat(hex(digest) || stored_length) FROM chunks WHERE NOT damaged AND",
                digests,
            )
        )
        known = ",".join(text for (text,) in found if text)
        return {
            bytes.fromhex(item[: 2 * DIGEST_BYTES]): int(item[2 * DIGEST_BYTES :])
            for item in known.split(",")
            if item
        }

    def locate(self, digests: Collection[bytes]) -> Places:
        """Where those of `digests` lie that the store holds. Others get their answers in between."""
        numbers: dict[str, int] = {}

        def find(batch: list[bytes]) -> PlaceRows:
            try:
                rows = rows_of("".join(text for (text,) in self._select(LOCATE, batch) if text))
            except ValueError as error:
                raise _broken(str(error)) from error
            # By numbers of ours: the catalog's may be another pack's by the next batch.
            known, rows["pack"] = np.unique(rows["pack"], return_inverse=True)
            names = self._names(known.tolist())
            ours = [numbers.setdefault(name, len(numbers)) for name in names]
            rows["pack"] = np.array(ours, np.uint64)[rows["pack"]]
            return rows

        # In the order of the table: neighbours are on the same page.
        parts = [self._run(partial(find, batch)) for batch in _batches(sorted(digests))]
        return Places(parts, list(numbers))

    def add_pack(
        self, name: str, length: int, entries: Iterable[Entry], *, replace: bool = False
    ) -> None:
        """Register a sealed pack. Chunks that the catalog has keep their place, unless they are damaged there or `replace`."""
        with self._lock, self._connection:
            row = self._connection.execute("SELECT 1 FROM packs WHERE name = ?", (name,)).fetchone()
            if row is None:  # else it was read in by a rebuild in between
                self._insert(name, length, entries, replace=replace)

    def remove_packs(self, names: Iterable[str]) -> int:
        """Delete the files of packs and forget what they hold; bytes that became free."""
        freed = 0
        gone: list[str] = []
        # Under one lock, so that nobody sees the one without the other. Files first: on a full disk SQLite cannot delete
        # before there is room.
        with self._lock:
            try:
                for name in names:
                    path = self.path_of(name)
                    with suppress(FileNotFoundError):
                        freed += path.stat().st_size
                        path.unlink()
                    gone.append(name)
                packs.sync_directory(self._packs)
            finally:
                try:
                    with self._connection:
                        self._forget(gone)
                except sqlite3.DatabaseError:
                    self.rebuild()  # or it would go on saying that the chunks are there
        return freed

    def path_of(self, pack: str) -> Path:
        """The file of a pack."""
        return self._packs / (pack + packs.SUFFIX)

    def disk_bytes(self) -> int:
        """What all packs take on the disk."""

        def find() -> int:
            (total,) = self._connection.execute("SELECT total(length) FROM packs").fetchone()
            return int(total)

        return self._run(find)

    def packs_without(self, digests: set[bytes]) -> set[str]:
        """Names of the packs that hold none of `digests`."""

        def find() -> set[str]:
            names: dict[int, str] = dict(self._connection.execute("SELECT id, name FROM packs"))
            for digest, pack in self._connection.execute("SELECT digest, pack FROM chunks"):
                if digest in digests:
                    names.pop(pack, None)
            return set(names.values())

        return self._run(find)

    def used(self, digests: set[bytes]) -> dict[str, tuple[int, int]]:
        """Of every pack its length in bytes, and how many of these are payload of `digests`."""

        def find() -> dict[str, tuple[int, int]]:
            used: dict[int, int] = {}
            query = "SELECT digest, pack, stored_length FROM chunks"
            for digest, pack, length in self._connection.execute(query):
                if digest in digests:
                    used[pack] = used.get(pack, 0) + length
            listed = self._connection.execute("SELECT id, name, length FROM packs")
            return {name: (length, used.get(pack, 0)) for pack, name, length in listed}

        return self._run(find)

    def entries(self, names: Collection[str]) -> dict[str, list[Entry]]:
        """What the catalog knows to lie in these packs, as it lies there."""

        def find() -> dict[str, list[Entry]]:
            found: dict[str, list[Entry]] = {name: [] for name in names}
            for batch in _batches(found):
                marks = ",".join("?" * len(batch))
                query = f"{_SELECT} WHERE packs.name IN ({marks})"
                for name, offset, digest, *rest in self._connection.execute(query, batch):
                    found[name].append(Entry(digest, offset, *rest))
            for entries in found.values():
                entries.sort(key=lambda entry: entry.offset)
            return found

        return self._run(find)

    def mark_damaged(self, digest: bytes) -> None:
        """The chunk is not what its digest says: the next writer that meets it stores it again."""
        try:
            with self._lock, self._connection:
                self._connection.execute(
                    "UPDATE chunks SET damaged = 1 WHERE digest = ?", (digest,)
                )
        except sqlite3.OperationalError as error:
            # A full or read-only disk must not hide the damage that the caller is about to report.
            logger.warning("The damage of chunk %s was not noted: %s", digest.hex(), error)

    def rebuild(self) -> None:
        """Throw the catalog away and read all packs in again."""
        with self._lock:
            self._remake(None)
            self._reconcile()

    def _open(self) -> sqlite3.Connection:
        # Created by us, since SQLite would give it the umask's mode.
        self._path.touch(mode=0o600)
        connection = sqlite3.connect(self._path, check_same_thread=False)
        try:
            # Exclusive: no shared memory file, so that WAL works on network file systems too.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if version not in (0, _SCHEMA_VERSION) or verdict != "ok":
                raise _broken(f"schema version {version}, check: {verdict}")
            connection.executescript(_SCHEMA)
            connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _remake(self, error: Exception | None) -> None:
        logger.warning(
            "The catalog %s is made again from the packs: %s", self._path, error or "asked for"
        )
        if error is None:
            self._connection.close()
        for suffix in ("", "-wal", "-shm", "-journal"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._connection = self._open()

    def _run(self, work: Callable[[], _Result]) -> _Result:
        """`work` under the lock; a catalog that turns out to be broken is made again and asked once more."""
        # Whoever waits comes before who has just had it: a page fault does not wait until a resume has looked up everything.
        with self._turn:
            self._lock.acquire()
        try:
            return work()
        except sqlite3.DatabaseError as error:
            if not _is_broken(error):
                raise
            logger.warning("The catalog %s is damaged: %s", self._path, error)
            self.rebuild()
            return work()
        finally:
            self._lock.release()

    def _select(self, query: str, digests: Collection[bytes]) -> list[Any]:
        """The rows that `query` gives for `digests`.

        One for many is best: between rows the sqlite3 module releases the GIL, and among busy threads each time it waits.
        """
        found = []
        for batch in _batches(digests):
            marks = ",".join("?" * len(batch))
            found += self._connection.execute(f"{query} digest IN ({marks})", batch).fetchall()
        return found

    def _names(self, ids: list[int]) -> list[str]:
        marks = ",".join("?" * len(ids))
        names: dict[int, str] = dict(self._connection.execute(f"{_NAMES} id IN ({marks})", ids))
        if len(names) < len(ids):
            raise _broken("a chunk's pack is not there")
        return [names[number] for number in ids]

    def _insert(self, name: str, length: int, entries: Iterable[Entry], *, replace: bool) -> None:
        pack = self._connection.execute(
            "INSERT INTO packs (name, length) VALUES (?, ?)", (name, length)
        ).lastrowid
        rows = ((e.offset, e.digest, *e[2:], pack or 0) for e in entries)
        self._connection.executemany(
            "INSERT INTO chunks (offset, digest, stored_length, raw_length, codec, pack, checksum) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (digest) DO UPDATE SET pack = excluded.pack, offset = excluded.offset, damaged = 0, "
            "stored_length = excluded.stored_length, raw_length = excluded.raw_length, codec = excluded.codec, "
            "checksum = excluded.checksum WHERE damaged OR ?",
            ((*row, checksum_of(*row), replace) for row in rows),
        )

    def _reconcile(self) -> None:
        """Make the catalog say what the folder holds."""
        found = {
            path.stem: path.stat().st_size
            for path in self._packs.glob("*" + packs.SUFFIX)
            if not path.name.startswith(packs.TEMPORARY)
        }
        known: dict[str, int] = dict(self._connection.execute("SELECT name, length FROM packs"))
        gone = [n for n, length in known.items() if n not in found or found[n] != length]
        with self._connection:
            self._forget(gone)
        new = [name for name in found if name not in known or name in gone]
        # A chunk that was stored again because it was damaged lies in the newer pack, so that one wins.
        for name in sorted(new):
            with self._connection:
                self._adopt(name, found[name])

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._connection.execute(
                "DELETE FROM chunks WHERE pack = (SELECT id FROM packs WHERE name = ?)", (name,)
            )
            self._connection.execute("DELETE FROM packs WHERE name = ?", (name,))

    def _adopt(self, name: str, length: int) -> None:
        path = self.path_of(name)
        try:
            try:
                entries = packs.read_index(path)
            except ObjectCorrupt as error:
                logger.warning("%s What can be verified in it is used.", error)
                entries = list(packs.scan(path))
        except FormatTooNew as error:
            logger.warning("%s Its chunks are not available.", error)
            return
        self._insert(name, length, entries, replace=True)


def _batches(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    left = iter(items)
    while batch := list(islice(left, _BATCH)):
        yield batch


def _broken(why: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(why)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _is_broken(error: sqlite3.DatabaseError) -> bool:
    # 0: an error of the sqlite3 module itself, such as a column of the wrong kind.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _BROKEN
