"""Queries and changes of the store's database, each for one turn (`database.py`)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

from ..codecs import DIGEST_BYTES
from ..packs import Entry
from .contents import Contents, numbers_in
from .database import batches, broken, sealed, unsealed
from .places import checksum_of

#: The number of packs that are listed in one turn.
_PACKS_AT_ONCE = 1000

# One row for all, as in `select`; in hexadecimal digits, because a name is that of any file.
_NAMES = "SELECT group_concat(id || ' ' || hex(name)) FROM packs WHERE"
_AMONG = "SELECT name FROM packs WHERE id NOT IN temp.gone AND name IN"
_INSERT = (
    "INSERT INTO chunks (offset, digest, stored_length, raw_length, codec, pack, checksum) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (digest) DO UPDATE SET pack = excluded.pack, offset = excluded.offset, damaged = 0, "
    "stored_length = excluded.stored_length, raw_length = excluded.raw_length, codec = excluded.codec, "
    "checksum = excluded.checksum WHERE damaged OR ? OR chunks.pack IN temp.gone OR chunks.pack IN temp.doubted"
)

#: The lowest digest of a part, and the one after its highest.
Bounds = tuple[bytes, bytes]
#: An entry and the number of its pack.
Placed = tuple[Entry, int]


def select(query: str, digests: Collection[bytes], connection: sqlite3.Connection) -> list[Any]:
    """Return the rows of `query` for these digests.

    A query should return one row for many digests: between rows the sqlite3 module releases the GIL and has to wait for it again.
    """
    found = []
    for batch in batches(digests):
        marks = ",".join("?" * len(batch))
        found += connection.execute(f"{query} digest IN ({marks})", batch).fetchall()
    return found


def parts() -> Iterator[Bounds]:
    """Yield the bounds of the parts of the table of chunks, each for one turn; ten million chunks have 2,400 parts."""
    bounds = [(first << 4).to_bytes(2, "big") for first in range(1 << 12)]
    return pairwise([*bounds, b"\xff" * (DIGEST_BYTES + 1)])


def between(query: str, bounds: Bounds, connection: sqlite3.Connection) -> list[Any]:
    """Return the rows of `query` for one part."""
    return connection.execute(f"{query} digest >= ? AND digest < ?", bounds).fetchall()


def names(connection: sqlite3.Connection, ids: list[int]) -> list[str]:
    """Return the names of the packs with these numbers, all of which must exist."""
    marks = ",".join("?" * len(ids))
    [(rows,)] = connection.execute(f"{_NAMES} id IN ({marks})", ids).fetchall()
    found = dict(row.split(" ") for row in (rows or "").split(",") if row)
    if len(found) < len(ids):
        raise broken("a chunk's pack is not there")
    return [bytes.fromhex(found[str(number)]).decode() for number in ids]


def number_of(connection: sqlite3.Connection, name: str) -> int:
    """Return the number of a pack, which must exist."""
    found = connection.execute("SELECT id FROM packs WHERE name = ?", (name,)).fetchone()
    if found is None:
        raise broken(f"pack {name} is not there")
    return int(found[0])


def packs_after(number: int, connection: sqlite3.Connection) -> list[tuple[int, str, int]]:
    """Return number, name and length of the next packs, those that are being registered (length 0) included."""
    query = "SELECT id, name, length FROM packs WHERE id > ? AND id NOT IN temp.gone ORDER BY id LIMIT ?"
    return connection.execute(query, (number, _PACKS_AT_ONCE)).fetchall()


def names_among(asked: Collection[str], connection: sqlite3.Connection) -> set[str]:
    """Return those of `asked` that are names of packs, those that are being registered included."""
    found: set[str] = set()
    for batch in batches(asked):
        marks = ",".join("?" * len(batch))
        found.update(name for (name,) in connection.execute(f"{_AMONG} ({marks})", batch))
    return found


_Columns = tuple[int, bytes | None, bytes | None]


def contents_of(name: str, connection: sqlite3.Connection) -> _Columns | None:
    """Return the number of a pack and the stored columns of its contents; None if there is no such pack."""
    query = (
        "SELECT id, numbers, digests FROM packs LEFT JOIN contents ON pack = id "
        "WHERE name = ? AND id NOT IN temp.gone"
    )
    found: _Columns | None = connection.execute(query, (name,)).fetchone()
    return found


def just_kept(connection: sqlite3.Connection, name: str) -> tuple[int, Contents]:
    """Return number and contents of a pack that the same transaction has entered."""
    found = contents_of(name, connection)
    columns = [unsealed(str(found[0]), column) for column in found[1:]] if found else []
    if found is None or columns[0] is None or columns[1] is None:
        raise broken(f"the rows of pack {name} that were just entered are missing")
    return found[0], Contents(numbers_in(columns[0]), columns[1])


def numbers_of(name: str, connection: sqlite3.Connection) -> tuple[int, bytes] | None:
    """Return the number of a pack and the column `numbers` of its contents; None if that is not stored."""
    query = "SELECT id, numbers FROM packs JOIN contents ON pack = id WHERE name = ?"
    found: tuple[int, bytes] | None = connection.execute(query, (name,)).fetchone()
    return found


def begin(name: str, contents: Contents, connection: sqlite3.Connection) -> bool:
    """Enter a pack; return False if a rebuild in between has already entered its chunks."""
    found = connection.execute("SELECT length FROM packs WHERE name = ?", (name,)).fetchone()
    if found is None:
        put_pack(connection, name, 0, contents)
    return found is None or not found[0]


def is_entered(connection: sqlite3.Connection, name: str) -> bool:
    """Return whether there is a row of this pack, even if it is being registered or is gone."""
    query = "SELECT 1 FROM packs WHERE name = ?"
    return connection.execute(query, (name,)).fetchone() is not None


def put_pack(connection: sqlite3.Connection, name: str, length: int, contents: Contents) -> int:
    """Enter a pack without its chunks, unless it exists; return its number."""
    query = "INSERT OR IGNORE INTO packs (name, length) VALUES (?, ?)"
    connection.execute(query, (name, length))
    pack = number_of(connection, name)
    put_contents(connection, pack, contents)
    return pack


def put_contents(connection: sqlite3.Connection, pack: int, contents: Contents) -> None:
    """Store the contents of a pack."""
    columns = (contents.numbers.tobytes(), contents.digests)
    connection.execute(
        "INSERT OR REPLACE INTO contents VALUES (?, ?, ?)",
        (pack, *(sealed(str(pack), column) for column in columns)),
    )


def insert(connection: sqlite3.Connection, placed: Iterable[Placed], *, replace: bool) -> None:
    """Enter chunks; known ones keep their place unless they are damaged, doubted or gone there, or `replace` is set."""
    rows = ((e.offset, e.digest, *e[2:], pack) for e, pack in placed)
    connection.executemany(_INSERT, ((*row, checksum_of(*row), replace) for row in rows))


def holders(connection: sqlite3.Connection, digests: Collection[bytes]) -> set[str]:
    """Return the names of the packs that have one of these chunks."""
    query = "SELECT DISTINCT name FROM packs JOIN chunks ON pack = id WHERE"
    return {name for (name,) in select(query, digests, connection)}


def entries(connection: sqlite3.Connection, *, pack: int) -> list[Entry]:
    """Return the chunks of a pack by a scan of all chunks."""
    query = "SELECT digest, offset, stored_length, raw_length, codec FROM chunks WHERE pack = ?"
    return [Entry(*row) for row in connection.execute(query, (pack,))]


def drop(connection: sqlite3.Connection, name: str) -> None:
    """Mark a pack as gone, in memory only."""
    connection.execute(
        "INSERT OR IGNORE INTO temp.gone SELECT id FROM packs WHERE name = ?", (name,)
    )


def spare(dropped: Iterable[str], connection: sqlite3.Connection) -> None:
    """Undo `drop` for these packs."""
    connection.executemany(
        "DELETE FROM temp.gone WHERE pack = (SELECT id FROM packs WHERE name = ?)",
        [(name,) for name in dropped],
    )


def lose(connection: sqlite3.Connection, name: str) -> None:
    """Mark a pack as gone, and free its name for a file with other contents."""
    drop(connection, name)
    connection.execute("UPDATE packs SET name = 'gone-' || id WHERE name = ?", (name,))


def doubt(connection: sqlite3.Connection, names: Iterable[str]) -> None:
    """Make these the packs whose chunks count as damaged for now."""
    connection.execute("DELETE FROM temp.doubted")
    connection.executemany(
        "INSERT INTO temp.doubted SELECT id FROM packs WHERE name = ?", [(name,) for name in names]
    )


def mark(connection: sqlite3.Connection, name: str, damaged: Iterable[tuple[bytes, bool]]) -> None:
    """Record for chunks, by their digests, whether the copies in this pack are damaged."""
    query = (
        "UPDATE chunks SET damaged = ? WHERE digest = ? AND damaged != ? "
        "AND pack = (SELECT id FROM packs WHERE name = ?)"
    )
    connection.executemany(query, [(is_, digest, is_, name) for digest, is_ in damaged])


def first_gone(connection: sqlite3.Connection) -> int | None:
    """Return the number of a pack that is gone and still has rows; None if there is none."""
    found = connection.execute("SELECT pack FROM temp.gone LIMIT 1").fetchone()
    return found[0] if found else None


#: Items to delete, the most that one turn may delete, and the function that deletes some of them.
Deletion = tuple[Iterable[Any], int, Callable[[list[Any], sqlite3.Connection], None]]


def deletions(pack: int, digests: bytes | None) -> Iterator[Deletion]:
    """Yield the deletions for a pack that is gone.

    `digests`: those of its chunks; None if unknown. The caller must check that the database was not rebuilt in between.
    """
    if digests is None:
        yield parts(), 1, partial(_delete_between, pack)
    else:
        size = DIGEST_BYTES
        each = (digests[start : start + size] for start in range(0, len(digests), size))
        yield each, len(digests), partial(_delete_chunks, pack)
    yield [pack], 1, _delete_packs


def digests_of(pack: int, connection: sqlite3.Connection) -> bytes | None:
    """Return the digests of the chunks of a pack by its number; None if they are not stored."""
    query = "SELECT digests FROM contents WHERE pack = ?"
    found = connection.execute(query, (pack,)).fetchone()
    return unsealed(str(pack), found[0]) if found else None


def _delete_chunks(pack: int, digests: list[bytes], connection: sqlite3.Connection) -> None:
    query = "DELETE FROM chunks WHERE pack = ? AND digest = ? AND pack IN temp.gone"
    connection.executemany(query, [(pack, digest) for digest in digests])


def _delete_between(pack: int, parts: list[Bounds], connection: sqlite3.Connection) -> None:
    query = "DELETE FROM chunks WHERE pack = ? AND pack IN temp.gone AND digest >= ? AND digest < ?"
    connection.executemany(query, [(pack, *bounds) for bounds in parts])


def _delete_packs(packs: list[int], connection: sqlite3.Connection) -> None:
    for query in (
        "DELETE FROM files WHERE name = (SELECT name FROM packs WHERE id = ? AND id IN temp.gone)",
        "DELETE FROM packs WHERE id = ? AND id IN temp.gone",
        "DELETE FROM contents WHERE pack = ? AND pack IN temp.gone",
        "DELETE FROM temp.doubted WHERE pack = ?",
        "DELETE FROM temp.gone WHERE pack = ?",
    ):
        connection.executemany(query, [(pack,) for pack in packs])
