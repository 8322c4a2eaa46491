"""Indexing of packs that the catalog does not know: one that a crash left, or all of them if the catalog was lost.

The contents of every pack are entered first, then the chunks in the order of their digests, a range of digests at a time: each page
of the table is written once, however many packs there are.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import FormatTooNew, ObjectCorrupt
from .. import packs
from ..codecs import DIGEST_BYTES
from ..packs import Entry
from . import rows
from .contents import Contents
from .needs import forget_needing

logger = logging.getLogger(__name__)

# Approximate number of chunks in memory at a time.
_CHUNKS_AT_ONCE = 500_000
# The number of packs in a transaction.
_PACKS_AT_ONCE = 100
# The number of values of a digest's first two bytes.
_PREFIXES = 1 << 16


def index_packs(connection: sqlite3.Connection, paths: dict[str, Path]) -> None:
    """Enter these packs, oldest first, in several transactions; a pack that was entered in part is entered again.

    A chunk that was stored again because it was damaged lies in the newer pack, so the newer pack wins. Raises OSError.
    """
    lengths: dict[str, int] = {}
    chunks = 0
    for name, path in paths.items():
        contents = contents_of(path)
        if contents is not None:
            lengths[name] = path.stat().st_size
            rows.put_pack(connection, name, 0, contents)
            chunks += len(contents.numbers)
        if len(lengths) % _PACKS_AT_ONCE == 0:
            connection.commit()
    if not lengths:
        return
    step = _PREFIXES // (chunks // _CHUNKS_AT_ONCE + 1) + 1
    for low in range(0, _PREFIXES, step):
        _enter(connection, lengths, low, low + step)
        connection.commit()
    connection.executemany(
        "UPDATE packs SET length = ? WHERE name = ?", [(n, name) for name, n in lengths.items()]
    )


def contents_of(path: Path) -> Contents | None:
    """Return a pack's contents from its index, or from its records if the index is damaged; None if neither can be read."""
    try:
        try:
            return Contents.of_index(packs.index_of(path))
        except ObjectCorrupt as error:
            logger.warning("%s Its verifiable records are used.", error)
            return Contents.of(packs.scan(path))
    except FormatTooNew as error:
        logger.warning("%s Its chunks are not available.", error)
    except FileNotFoundError:
        pass
    return None


def _enter(connection: sqlite3.Connection, names: Iterable[str], low: int, high: int) -> None:
    """Enter the chunks whose digests begin with a number from `low` up to, but not including, `high`.

    Records of snapshots that needed such a chunk in another pack are cleared.
    """
    parts: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []
    for name in names:
        pack, contents = rows.just_kept(connection, name)
        digests = np.frombuffer(contents.digests, f"S{DIGEST_BYTES}")
        prefixes = np.frombuffer(contents.digests, ">u2")[:: DIGEST_BYTES // 2]
        chosen = np.flatnonzero((prefixes >= low) & (prefixes < high))
        parts.append((digests[chosen], contents.numbers[chosen], np.full(len(chosen), pack)))
    digests, numbers, places = (np.concatenate(column) for column in zip(*parts, strict=True))
    # A stable sort keeps copies in the order of their packs.
    order = np.argsort(digests, kind="stable")
    if connection.execute("SELECT 1 FROM snapshots WHERE needs IS NOT NULL LIMIT 1").fetchone():
        forget_needing(connection, rows.holders(connection, _bytes(digests)))

    def placed() -> Iterator[rows.Placed]:
        for batch in np.array_split(order, len(order) // 10_000 + 1):
            columns = (_bytes(digests[batch]), numbers[batch].tolist(), places[batch].tolist())
            for digest, row, pack in zip(*columns, strict=True):
                yield Entry(digest, *row), pack

    rows.insert(connection, placed(), replace=True)


def _bytes(digests: NDArray[Any]) -> list[bytes]:
    """Return the digests as bytes of full length; numpy strings would lose trailing zeros."""
    return list(map(bytes, digests.view(f"V{DIGEST_BYTES}").tolist()))
