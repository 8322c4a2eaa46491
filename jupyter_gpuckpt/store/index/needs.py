"""The chunks that a snapshot needs, as a bitmap per pack with one bit for each of its chunks, in the order of `contents.py`.

Packs are identified by their names, which are never reused. A pack of 2,500 chunks takes 313 bytes in the record of each snapshot that
needs a chunk of it, so the bitmaps of ten thousand snapshots take some megabytes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...wire import decoding

#: Bitmaps by pack (`np.packbits`, lowest bit first).
Needs = dict[str, NDArray[np.uint8]]

#: The number of packs above which every snapshot is assumed to need one of them.
_ASK_FOR_EACH = 20


class Newest(NamedTuple):
    """The number of the latest record at some moment.

    `remakes`: the database's count at that moment; numbers start again when it is rebuilt.
    """

    number: int
    remakes: int


def pack_bits(chosen: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Pack one truth value per chunk of a pack into bits."""
    return np.packbits(chosen, bitorder="little")


def chosen_of(bits: NDArray[np.uint8], count: int) -> NDArray[np.bool_]:
    """Return the truth values in `bits`, for a pack of `count` chunks."""
    return np.unpackbits(bits, count=count, bitorder="little").astype(np.bool_)


def add(total: Needs, more: Needs) -> None:
    """Add the chunks in `more` to `total`."""
    for name, bits in more.items():
        before = total.get(name)
        total[name] = bits if before is None else before | bits


def union(all_needs: Iterable[Needs]) -> Needs:
    """Return the union of these needs."""
    total: Needs = {}
    for needs in all_needs:
        add(total, needs)
    return total


def encoded(needs: Needs) -> bytes:
    """Encode `needs` as bytes in which SQL can search for the names of packs."""
    return msgspec.msgpack.encode({name: needs[name].tobytes() for name in sorted(needs)})


def decoded(data: bytes) -> Needs:
    """Return the needs that `encoded` got."""
    found = decoding.from_msgpack(data, dict[str, bytes])
    return {name: np.frombuffer(bits, np.uint8) for name, bits in found.items()}


def forget_needing(connection: sqlite3.Connection, packs: Collection[str]) -> None:
    """Clear the recorded needs of snapshots that need a chunk of one of these packs; their manifests are read again."""
    if len(packs) > _ASK_FOR_EACH:
        connection.execute("UPDATE snapshots SET needs = NULL")
        return
    for name in packs:
        connection.execute(
            "UPDATE snapshots SET needs = NULL WHERE instr(needs, ?)", (name.encode(),)
        )


def newer_needs(pack: str, newest: Newest, remakes: int, connection: sqlite3.Connection) -> bool:
    """Return whether a snapshot recorded after `newest` may need a chunk of this pack. `remakes`: the database's present count."""
    if newest.remakes != remakes:
        return True
    query = "SELECT 1 FROM snapshots WHERE number > ? AND (needs IS NULL OR instr(needs, ?))"
    return connection.execute(query, (newest.number, pack.encode())).fetchone() is not None
