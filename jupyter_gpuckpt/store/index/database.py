"""The SQLite database of a store; everything in it can be rebuilt from packs and manifests.

One process has it open. Its threads share one connection and take turns in FIFO order. A turn is one transaction and takes
milliseconds, because page faults of a resume wait behind it.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from ...linux.disk_reserve import LEFT_BYTES, with_room

logger = logging.getLogger(__name__)

#: The number of rows that a turn changes at first, and at least; it is adapted to the time that turns take.
_CHANGES, _MIN_CHANGES = 200, 25
#: The target duration of a turn that changes rows.
_TURN_SECONDS = 0.01

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")

#: The version of the schema; 0 is that of a new file.
_SCHEMA_VERSION = 1
# A pack of length 0 is being registered. `moving`: packs whose chunks are being moved to another pack. `files`: see `pack_files.py`.
# `gone`: removed packs whose rows are still to be deleted. `doubted`: packs that were changed from outside and not read since. A new
# process computes these two again.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS packs (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, length INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS chunks (
    digest BLOB PRIMARY KEY, pack INTEGER NOT NULL, offset INTEGER NOT NULL, stored_length INTEGER NOT NULL,
    raw_length INTEGER NOT NULL, codec INTEGER NOT NULL, checksum INTEGER NOT NULL, damaged INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS contents (pack INTEGER PRIMARY KEY, numbers BLOB NOT NULL, digests BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots (
    number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE NOT NULL, identity TEXT NOT NULL, info BLOB NOT NULL, needs BLOB
);
CREATE TABLE IF NOT EXISTS moving (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY, facts BLOB NOT NULL) WITHOUT ROWID;
CREATE TEMP TABLE IF NOT EXISTS gone (pack INTEGER PRIMARY KEY);
CREATE TEMP TABLE IF NOT EXISTS doubted (pack INTEGER PRIMARY KEY);
"""
#: The number of parameters in a statement; the oldest supported SQLite allows 999.
BATCH = 500
# The limit of SQLite's cache. With its default of 2 MB, pages are read repeatedly when a resume looks up 100,000 chunks.
_CACHE_KIB = 64 << 10
# A checkpoint of SQLite's default of 1000 pages takes 20 ms and more, for which all threads wait. In a large store every changed
# row is on a page of its own, so there are as many pages as rows in a turn, and some.
_CHECKPOINT_PAGES_PER_ROW = 1.25
_BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT})


class Database:
    """The database in the file `path`; thread-safe.

    `remade` fills a new database, in the turn in which the old one was found to be broken. Raises sqlite3.OperationalError and
    OSError, which the store translates.
    """

    def __init__(self, path: Path, remade: Callable[[sqlite3.Connection], None]) -> None:
        self._path, self._remade = path, remade
        self._lock = threading.RLock()
        # FIFO turnstile: acquired before `_lock`, released as soon as `_lock` is held.
        self._queue = threading.Lock()
        #: The number of rebuilds of the file: row numbers are valid only for the same count. Read it in a turn.
        self.remakes = 0
        self._unfinished = False
        self._rows = _CHANGES
        try:
            self._connection = self._open()
        except sqlite3.DatabaseError as error:
            if not _is_broken(error):
                raise
            self._replace(error)

    def close(self) -> None:
        """Close the file; may be called again."""
        with self._lock:
            self._unfinished = False
            self._connection.close()

    def run(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Run `work` as one transaction and return its result.

        A file that turns out to be broken, or whose rebuild did not finish, is rebuilt, and `work` is run once more. Do not call this
        from inside `work`.
        """
        return self._timed(work)[0]

    def change(
        self,
        items: Iterable[_Item],
        work: Callable[[list[_Item], sqlite3.Connection], object],
        *,
        max_items: int = _CHANGES,
    ) -> None:
        """Run `work` on all `items`, in turns of at most `max_items` items, fewer if turns take long.

        In a large store, or on a slow disk, a changed row takes longer, and others wait for the whole turn.
        """
        left = iter(items)
        while batch := list(islice(left, min(max_items, self._rows))):
            _, seconds = self._timed(partial(work, batch))
            if len(batch) == self._rows and not _TURN_SECONDS / 2 <= seconds <= 2 * _TURN_SECONDS:
                rows = self._rows // 2 if seconds > _TURN_SECONDS else self._rows * 2
                self._rows = min(_CHANGES, max(_MIN_CHANGES, rows))
                self.run(self._set_checkpoint)

    def _set_checkpoint(self, connection: sqlite3.Connection) -> None:
        pages = int(_CHECKPOINT_PAGES_PER_ROW * self._rows)
        connection.execute(f"PRAGMA wal_autocheckpoint = {pages}")

    def _timed(self, work: Callable[[sqlite3.Connection], _Result]) -> tuple[_Result, float]:
        """Run `work` in a turn; return its result and the turn's duration, for which others had to wait."""
        # Fairness: a page fault must not starve behind the many turns of a bulk lookup.
        with self._queue:
            self._lock.acquire()
        began = time.monotonic()
        try:
            return self._turn(work), time.monotonic() - began
        except sqlite3.DatabaseError as error:
            if not _is_broken(error):
                raise
            logger.warning("The catalog %s is damaged: %s", self._path, error)
            with _not_again():
                self._remake(error)
                with self._connection:
                    return work(self._connection), 0.0
        finally:
            self._lock.release()

    def _turn(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Run `work` as a transaction, which has room on a full disk: deletions need it, and so does the next opening."""

        def turn() -> _Result:
            self._require_finished()
            with self._connection:
                return work(self._connection)

        return with_room(self._path, turn, left_bytes=LEFT_BYTES)

    def remake(self) -> None:
        """Delete the file and rebuild it."""
        with self._lock, _not_again():
            self._remake(None)

    def _require_finished(self) -> None:
        if self._unfinished:
            raise broken("its rebuild did not finish")

    def _remake(self, error: Exception | None) -> None:
        self.remakes += 1
        self._unfinished = True
        self._connection.close()
        self._replace(error)
        with self._connection:
            self._remade(self._connection)
        self._unfinished = False

    def _open(self) -> sqlite3.Connection:
        return with_room(self._path, self._opened, left_bytes=LEFT_BYTES)

    def _opened(self) -> sqlite3.Connection:
        # The file is created here, because SQLite would apply the umask to its mode.
        self._path.touch(mode=0o600)
        connection = sqlite3.connect(self._path, check_same_thread=False)
        try:
            # Exclusive mode needs no shared memory file, so that WAL works on network file systems, too.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA temp_store = MEMORY")
            # Damage is detected on access: a check of the whole file would delay the opening of a large store.
            connection.execute("PRAGMA cell_size_check = ON")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._set_checkpoint(connection)
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in {0, _SCHEMA_VERSION}:
                raise broken(f"schema version {version}")
            connection.executescript(_SCHEMA)
            if version != _SCHEMA_VERSION:  # a write, which needs room
                connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _replace(self, error: Exception | None) -> None:
        logger.warning("The catalog %s is rebuilt: %s", self._path, error or "requested")
        for suffix in ("", "-wal", "-shm", "-journal"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._connection = self._open()


def batches(items: Iterable[_Item], size: int = 0) -> Iterator[list[_Item]]:
    """Yield `items` in batches of this size (default: `BATCH`)."""
    left = iter(items)
    while batch := list(islice(left, size or BATCH)):
        yield batch


def sealed(name: str, data: bytes) -> bytes:
    """Return `data` with a checksum prepended; SQLite detects a damaged structure, but not damaged bytes."""
    return zlib.crc32(data, zlib.crc32(name.encode())).to_bytes(4, "big") + data


def unsealed(name: str, data: bytes | None) -> bytes | None:
    """Return the data that `sealed` got for this name; None if name or checksum do not match."""
    if not isinstance(data, bytes) or sealed(name, data[4:]) != data:
        return None
    return data[4:]


def broken(why: str) -> sqlite3.DatabaseError:
    """Return an error that makes `Database.run` rebuild the file."""
    error = sqlite3.DatabaseError(why)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _is_broken(error: sqlite3.DatabaseError) -> bool:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:  # an error of the sqlite3 module itself, e.g. invalid UTF-8
        return isinstance(error, sqlite3.OperationalError)
    return code & 0xFF in _BROKEN


@contextmanager
def _not_again() -> Iterator[None]:
    """Raise OperationalError if a database that was just made is broken as well."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if _is_broken(error):
            raise sqlite3.OperationalError(f"a new one is damaged too: {error}") from error
        raise
