"""Where chunks lie on the disk, for many at once.

As columns: a GB has 4,000 chunks, and making Python objects of each would hold Python's lock when a resume can least afford it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .codecs import DIGEST_BYTES

#: A chunk's place: `pack` is the number of its pack, `checksum` the catalog's of all before it.
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
#: The beginning of a query whose answer is one text for all chunks that are asked for: their places in hexadecimal digits.
LOCATE = (
    "SELECT group_concat(printf('%016x', offset) || hex(digest) || "
    "printf('%08x%08x%02x%016x%08x%02x', stored_length, raw_length, codec, pack, checksum, damaged), '') "
    "FROM chunks WHERE pack NOT IN temp.gone AND"
)
# PLACE as that writes it.
_WRITTEN = np.dtype([(name, PLACE[name].newbyteorder(">")) for name in PLACE.names or ()])
# What the checksum covers: all before it in PLACE.
_CHECKED = struct.Struct(f"<Q{DIGEST_BYTES}sIIBQ")

#: An array of PLACE.
PlaceRows = NDArray[Any]


class Location(NamedTuple):
    """A chunk's pack (its name) and its place there."""

    pack: str
    offset: int
    digest: bytes
    stored_length: int
    raw_length: int
    codec: int


class Places:
    """Chunks' places, in the order in which they lie on the disk. `packs`: the names of the packs that `pack` counts."""

    def __init__(self, parts: Sequence[PlaceRows], packs: Sequence[str]) -> None:
        rows = np.concatenate([np.empty(0, PLACE), *parts])
        self.rows = rows[np.lexsort((rows["offset"], rows["pack"]))]
        self.packs = packs

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Location]:
        for offset, digest, stored_length, raw_length, codec, pack, *_ in self.rows.tolist():
            yield Location(
                self.packs[pack], offset, bytes(digest), stored_length, raw_length, codec
            )

    def undamaged(self) -> Places:
        """Return those that are not known to be damaged."""
        return Places([self.rows[self.rows["damaged"] == 0]], self.packs)

    @property
    def digests(self) -> list[bytes]:
        """Of the chunks, in their order."""
        return list(map(bytes, self.rows["digest"].tolist()))


def rows_of(written: str) -> PlaceRows:
    """The rows that `LOCATE` gave. Raises ValueError when they are not that, or were altered."""
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
    """What the catalog keeps beside a row; SQLite notices a damaged structure, not a damaged number."""
    return zlib.crc32(_CHECKED.pack(offset, digest, stored_length, raw_length, codec, pack))
