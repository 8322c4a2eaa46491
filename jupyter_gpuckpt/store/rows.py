"""Questions to the store's database and changes of it that are each done in one turn (`database.py`)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from .codecs import DIGEST_BYTES
from .contents import Contents, numbers_in
from .database import batches, broken, sealed, unsealed
from .packs import Entry
from .places import checksum_of

#: Rows that are changed in one turn.
CHANGES = 200

_NAMES = "SELECT id, name FROM packs WHERE"
_SOME = "SELECT name FROM packs WHERE id NOT IN temp.gone"
_INSERT = (
    "INSERT INTO chunks (offset, digest, stored_length, raw_length, codec, pack, checksum) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (digest) DO UPDATE SET pack = excluded.pack, offset = excluded.offset, damaged = 0, "
    "stored_length = excluded.stored_length, raw_length = excluded.raw_length, codec = excluded.codec, "
    "checksum = excluded.checksum WHERE damaged OR ? OR chunks.pack IN temp.gone"
)

#: The lowest digest of a part, and the one after its highest.
Bounds = tuple[bytes, bytes]
#: An entry and the number of its pack.
Placed = tuple[Entry, int]


def select(query: str, digests: Collection[bytes], connection: sqlite3.Connection) -> list[Any]:
    """The rows that `query` gives for `digests`.

    One for many is best: between rows the sqlite3 module releases the GIL, and among busy threads each time it waits.
    """
    found = []
    for batch in batches(digests):
        marks = ",".join("?" * len(batch))
        found += connection.execute(f"{query} digest IN ({marks})", batch).fetchall()
    return found


def parts() -> Iterator[Bounds]:
    """The whole table of chunks in parts, each for one turn: of ten million chunks 2,400."""
    bounds = [(first << 4).to_bytes(2, "big") for first in range(1 << 12)]
    return pairwise([*bounds, b"\xff" * (DIGEST_BYTES + 1)])


def between(query: str, bounds: Bounds, connection: sqlite3.Connection) -> list[Any]:
    """The rows that `query` gives for a part."""
    return connection.execute(f"{query} digest >= ? AND digest < ?", bounds).fetchall()


def names(connection: sqlite3.Connection, ids: list[int]) -> list[str]:
    """Names of packs by their numbers, all of which must be there."""
    marks = ",".join("?" * len(ids))
    found: dict[int, str] = dict(connection.execute(f"{_NAMES} id IN ({marks})", ids))
    if len(found) < len(ids):
        raise broken("a chunk's pack is not there")
    return [found[number] for number in ids]


def number_of(connection: sqlite3.Connection, name: str) -> int:
    """The number of a pack that is there."""
    found = connection.execute("SELECT id FROM packs WHERE name = ?", (name,)).fetchone()
    if found is None:
        raise broken(f"pack {name} is not there")
    return int(found[0])


def lengths(connection: sqlite3.Connection) -> dict[str, int]:
    """All packs that are there, with their lengths."""
    query = "SELECT name, length FROM packs WHERE length AND id NOT IN temp.gone"
    return dict(connection.execute(query))


def all_names(connection: sqlite3.Connection) -> set[str]:
    """All packs, those that are being registered included."""
    return set(_some_names("", (), connection))


def names_among(asked: Collection[str], connection: sqlite3.Connection) -> set[str]:
    """Those of `asked` that are packs, as above."""
    found: set[str] = set()
    for batch in batches(asked):
        marks = ",".join("?" * len(batch))
        found.update(_some_names(f" AND name IN ({marks})", batch, connection))
    return found


def _some_names(which: str, values: Sequence[str], connection: sqlite3.Connection) -> Iterator[str]:
    return (name for (name,) in connection.execute(f"{_SOME}{which}", values))


_Columns = tuple[int, bytes | None, bytes | None]


def contents_of(name: str, connection: sqlite3.Connection) -> _Columns | None:
    """The number of a pack and what was kept of its contents; None where there is no such pack."""
    query = (
        "SELECT id, numbers, digests FROM packs LEFT JOIN contents ON pack = id "
        "WHERE name = ? AND id NOT IN temp.gone"
    )
    found: _Columns | None = connection.execute(query, (name,)).fetchone()
    return found


def just_kept(connection: sqlite3.Connection, name: str) -> tuple[int, Contents]:
    """The number and the contents of a pack that were entered in the same turn."""
    found = contents_of(name, connection)
    columns = [unsealed(str(found[0]), column) for column in found[1:]] if found else []
    if found is None or columns[0] is None or columns[1] is None:
        raise broken(f"what was entered of pack {name} is not there")
    return found[0], Contents(numbers_in(columns[0]), columns[1])


def numbers_of(name: str, connection: sqlite3.Connection) -> tuple[int, bytes] | None:
    """The number of a pack and the first half of its contents; None where that was not kept."""
    query = "SELECT id, numbers FROM packs JOIN contents ON pack = id WHERE name = ?"
    found: tuple[int, bytes] | None = connection.execute(query, (name,)).fetchone()
    return found


def begin(name: str, contents: Contents, connection: sqlite3.Connection) -> bool:
    """Whether a pack's chunks are to be entered: not where it was read in by a rebuild in between."""
    found = connection.execute("SELECT length FROM packs WHERE name = ?", (name,)).fetchone()
    if found is None:
        put_pack(connection, name, 0, contents)
    return found is None or not found[0]


def is_entered(connection: sqlite3.Connection, name: str) -> bool:
    """Whether there is a row of this pack, be it one that is being registered or is gone."""
    query = "SELECT 1 FROM packs WHERE name = ?"
    return connection.execute(query, (name,)).fetchone() is not None


def put_pack(connection: sqlite3.Connection, name: str, length: int, contents: Contents) -> int:
    """Enter a pack without its chunks, if it is not there; its number."""
    query = "INSERT OR IGNORE INTO packs (name, length) VALUES (?, ?)"
    connection.execute(query, (name, length))
    pack = number_of(connection, name)
    put_contents(connection, pack, contents)
    return pack


def put_contents(connection: sqlite3.Connection, pack: int, contents: Contents) -> None:
    """Keep what lies in a pack."""
    columns = (contents.numbers.tobytes(), contents.digests)
    connection.execute(
        "INSERT OR REPLACE INTO contents VALUES (?, ?, ?)",
        (pack, *(sealed(str(pack), column) for column in columns)),
    )


def insert(connection: sqlite3.Connection, placed: Iterable[Placed], *, replace: bool) -> None:
    """Enter chunks. Those that are known stay where they are, unless they are damaged there, or gone, or `replace`."""
    rows = ((e.offset, e.digest, *e[2:], pack) for e, pack in placed)
    connection.executemany(_INSERT, ((*row, checksum_of(*row), replace) for row in rows))


def holders(connection: sqlite3.Connection, digests: Collection[bytes]) -> set[str]:
    """The packs where those of `digests` lie that are known."""
    query = "SELECT DISTINCT name FROM packs JOIN chunks ON pack = id WHERE"
    return {name for (name,) in select(query, digests, connection)}


def entries(connection: sqlite3.Connection, *, pack: int) -> list[Entry]:
    """What is known to lie in a pack; looks through all chunks."""
    query = "SELECT digest, offset, stored_length, raw_length, codec FROM chunks WHERE pack = ?"
    return [Entry(*row) for row in connection.execute(query, (pack,))]


def drop(connection: sqlite3.Connection, name: str) -> None:
    """Let a pack count as gone. Writes nothing to the disk."""
    connection.execute(
        "INSERT OR IGNORE INTO temp.gone SELECT id FROM packs WHERE name = ?", (name,)
    )


def spare(dropped: Iterable[str], connection: sqlite3.Connection) -> None:
    """Undo that."""
    connection.executemany(
        "DELETE FROM temp.gone WHERE pack = (SELECT id FROM packs WHERE name = ?)",
        [(name,) for name in dropped],
    )


def first_gone(connection: sqlite3.Connection) -> int | None:
    """The number of a pack that is gone and still has rows."""
    found = connection.execute("SELECT pack FROM temp.gone LIMIT 1").fetchone()
    return found[0] if found else None


def deletions(pack: int, digests: bytes | None) -> Iterator[Callable[[sqlite3.Connection], None]]:
    """Turns that delete all that is said of a pack that is gone; `digests` of what lay in it, where they are known.

    They do nothing to a pack that has its number by then.
    """
    if digests is None:
        for bounds in parts():
            yield partial(_delete_between, pack, bounds)
    else:
        size = DIGEST_BYTES
        each = (digests[start : start + size] for start in range(0, len(digests), size))
        for batch in batches(each, CHANGES):
            yield partial(_delete_chunks, pack, batch)
    yield partial(_delete_pack, pack)


def digests_of(pack: int, connection: sqlite3.Connection) -> bytes | None:
    """What lies in a pack by its number; None where that was not kept."""
    query = "SELECT digests FROM contents WHERE pack = ?"
    found = connection.execute(query, (pack,)).fetchone()
    return unsealed(str(pack), found[0]) if found else None


def _delete_chunks(pack: int, digests: list[bytes], connection: sqlite3.Connection) -> None:
    query = "DELETE FROM chunks WHERE pack = ? AND digest = ? AND pack IN temp.gone"
    connection.executemany(query, [(pack, digest) for digest in digests])


def _delete_between(pack: int, bounds: Bounds, connection: sqlite3.Connection) -> None:
    query = "DELETE FROM chunks WHERE pack = ? AND pack IN temp.gone AND digest >= ? AND digest < ?"
    connection.execute(query, (pack, *bounds))


def _delete_pack(pack: int, connection: sqlite3.Connection) -> None:
    for query in (
        "DELETE FROM packs WHERE id = ? AND id IN temp.gone",
        "DELETE FROM contents WHERE pack = ? AND pack IN temp.gone",
        "DELETE FROM temp.gone WHERE pack = ?",
    ):
        connection.execute(query, (pack,))
