"""A table of the places of many chunks: pack and offset.

A GB has 4,000 chunks, and a Python object for each would hold the GIL too long during a resume.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..codecs import DIGEST_BYTES
from ..packs import Entry

#: A chunk's place: `pack` is the number of its pack, `checksum` the catalog's checksum of the fields before it, `damaged` whether it is
#: known to be damaged, or in a pack that was changed from outside.
PLACE = np.dtype(
    [
        ("offset", "<u8"),
        ("digest", f"V{DIGEST_BYTES}"),
        ("stored_length", "<u4"),
        ("raw_length", "<u4"),
        ("codec", "u1"),
        ("pack", "<u8"),
        ("checksum", "<u4"),
        ("damaged", "u1"),
    ]
)
#: The beginning of a query that returns one text with the places of all requested chunks, in hexadecimal digits.
LOCATE = (
    "SELECT group_concat(printf('%016x', offset) || hex(digest) || "
    "printf('%08x%08x%02x%016x%08x%02x', stored_length, raw_length, codec, pack, checksum, "
    "damaged OR pack IN temp.doubted), '') "
    "FROM chunks WHERE pack NOT IN temp.gone AND"
)
# PLACE as that query writes it.
_WRITTEN = np.dtype([(name, PLACE[name].newbyteorder(">")) for name in PLACE.names or ()])
# The fields that the checksum covers: those before it in PLACE.
_CHECKED = struct.Struct(f"<Q{DIGEST_BYTES}sIIBQ")

#: An array of PLACE.
PlaceRows = NDArray[Any]


class Location(NamedTuple):
    """The place of one chunk; `pack` is the name of its pack."""

    pack: str
    offset: int
    digest: bytes
    stored_length: int
    raw_length: int
    codec: int


class Places:
    """A table of places of chunks, in the order of the disk. `packs`: names of the packs, which `pack` indexes."""

    def __init__(self, parts: Sequence[PlaceRows], packs: Sequence[str]) -> None:
        rows = np.concatenate([np.empty(0, PLACE), *parts])
        self.rows = rows[np.lexsort((rows["offset"], rows["pack"]))]
        self.packs = packs

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Location]:
        rows = self.rows
        numbers = (rows[name].tolist() for name in ("stored_length", "raw_length", "codec"))
        packs = [self.packs[pack] for pack in rows["pack"].tolist()]
        return map(Location, packs, rows["offset"].tolist(), self.digests, *numbers)

    def undamaged(self) -> Places:
        """Return the places of the chunks that are not known to be damaged."""
        return Places([self.rows[self.rows["damaged"] == 0]], self.packs)

    def entries(self) -> list[Entry]:
        """Return the entries of the chunks in their packs, in the same order."""
        fields = (self.rows[name].tolist() for name in Entry._fields[1:])
        return list(map(Entry, self.digests, *fields))

    @property
    def digests(self) -> list[bytes]:
        """The digests of the chunks, in the same order."""
        return digests_in(self.rows)


def unique(digests: Collection[bytes]) -> AbstractSet[bytes]:
    """Return each of the digests once. A set is not copied, because it may be large."""
    return digests if isinstance(digests, AbstractSet) else set(digests)


def digests_in(rows: PlaceRows) -> list[bytes]:
    """Return the digests in rows, in their order."""
    data = rows["digest"].tobytes()
    return [data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES)]


def rows_of(written: str) -> PlaceRows:
    """Return the rows in the text that `LOCATE` returned. Raises ValueError if it is malformed or a row was altered."""
    rows = np.frombuffer(bytes.fromhex(written), _WRITTEN).astype(PLACE)
    data = memoryview(rows.tobytes())
    checked = [
        zlib.crc32(data[start : start + _CHECKED.size])
        for start in range(0, len(data), PLACE.itemsize)
    ]
    if not np.array_equal(rows["checksum"], np.array(checked, np.uint32)):
        raise ValueError("a row was altered")
    return rows


def checksum_of(
    offset: int, digest: bytes, stored_length: int, raw_length: int, codec: int, pack: int
) -> int:
    """Return the checksum of a row of the catalog; SQLite detects a damaged structure, but not a damaged number."""
    return zlib.crc32(_CHECKED.pack(offset, digest, stored_length, raw_length, codec, pack))
