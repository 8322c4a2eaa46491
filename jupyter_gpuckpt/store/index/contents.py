"""The contents of packs as columns: one row per chunk, in the order of their offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..codecs import DIGEST_BYTES
from ..packs import INDEX_ROW, Entry

_NUMBERS = np.dtype(
    [("offset", "<u8"), ("stored_length", "<u4"), ("raw_length", "<u4"), ("codec", "u1")]
)


class Contents(NamedTuple):
    """The chunks of one pack.

    `numbers`: offset, stored_length, raw_length and codec of every chunk. `digests`: their digests, concatenated.
    """

    numbers: NDArray[Any]
    digests: bytes

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Contents:
        """Return the contents of a pack with these entries."""
        ordered = sorted(entries, key=lambda entry: entry.offset)
        numbers = np.array([tuple(entry[1:]) for entry in ordered], _NUMBERS)
        return cls(numbers, b"".join(entry.digest for entry in ordered))

    @classmethod
    def of_index(cls, index: bytes) -> Contents:
        """Return the contents of a pack with this index (`packs.index_of`)."""
        rows = np.frombuffer(index, INDEX_ROW)
        rows = rows[np.argsort(rows["offset"], kind="stable")]
        numbers = np.empty(len(rows), _NUMBERS)
        for name in _NUMBERS.names or ():
            numbers[name] = rows[name]
        return cls(numbers, rows["digest"].tobytes())

    def each_digest(self) -> Iterator[bytes]:
        """Yield the digests."""
        for start in range(0, len(self.digests), DIGEST_BYTES):
            yield self.digests[start : start + DIGEST_BYTES]

    def entries(self) -> Iterator[Entry]:
        """Yield the chunks as entries."""
        for digest, numbers in zip(self.each_digest(), self.numbers.tolist(), strict=True):
            yield Entry(digest, *numbers)


def numbers_in(data: bytes) -> NDArray[Any]:
    """Return the column `numbers` from its bytes."""
    return np.frombuffer(data, _NUMBERS)
