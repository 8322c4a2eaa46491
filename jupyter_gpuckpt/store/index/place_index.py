"""An in-memory index of the places of all chunks, several times faster than the catalog when many snapshots are recorded.

It takes 21 bytes per chunk: only the first 8 bytes of digests are kept.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .catalog import Catalog

_DIGEST_START = np.dtype(">u8")


class Located(NamedTuple):
    """The places of chunks as columns, damaged ones included.

    `pack`: index into `names`. `complete`: every requested chunk exists and is not known to be damaged.
    """

    names: list[str]
    pack: NDArray[np.uint32]
    offset: NDArray[np.uint64]
    complete: bool


class PlaceIndex:
    """An index of the places of all chunks at the moment of its construction.

    `moves`: the catalog's count before; results are valid while that count is the same. Reading ends early when `stop` is set, and
    the index is not `usable` then.
    """

    def __init__(self, catalog: Catalog, stop: threading.Event | None = None) -> None:
        self.moves = catalog.moves
        numbers: dict[str, int] = {}
        parts = []
        for rows in catalog.walk(numbers):
            pack, damaged = rows["pack"].astype(np.uint32), rows["damaged"].astype(np.bool_)
            starts = _starts(rows["digest"].tobytes())
            parts.append((starts, pack, rows["offset"].copy(), damaged))
            if stop is not None and stop.is_set():
                break
        self._keys, self._pack, self._offset, self._damaged = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        order = np.argsort(self._keys, kind="stable")
        self._keys, self._pack = self._keys[order], self._pack[order]
        self._offset, self._damaged = self._offset[order], self._damaged[order]
        self._names = list(numbers)
        #: Whether the index is complete, and no two digests have the same first bytes.
        self.usable = bool(np.all(self._keys[1:] != self._keys[:-1]))
        self.usable &= stop is None or not stop.is_set()

    def find(self, digests: Collection[bytes]) -> Located:
        """Return the places of those of `digests` that the store has."""
        keys = _starts(b"".join(digests))
        at = np.searchsorted(self._keys, keys)
        inside = at < len(self._keys)
        at = at[inside]
        at = at[self._keys[at] == keys[inside]]
        complete = len(at) == len(keys) and not np.any(self._damaged[at])
        return Located(self._names, self._pack[at], self._offset[at], complete)


def _starts(digests: bytes) -> NDArray[np.uint64]:
    return np.frombuffer(digests, _DIGEST_START)[::4].astype(np.uint64)
