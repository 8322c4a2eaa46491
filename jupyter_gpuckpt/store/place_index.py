"""Where every chunk lies, in memory: for as long as so many snapshots are put on record that asking the catalog for the chunks of
each would take a multiple of the time.

21 bytes for a chunk: digests are told apart by their first 8 bytes.
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
    """Where chunks lie, damaged ones included, as columns: `pack` counts `names`. `whole`: all that were asked for are known
    undamaged."""

    names: list[str]
    pack: NDArray[np.uint32]
    offset: NDArray[np.uint64]
    whole: bool


class PlaceIndex:
    """As the catalog is while it is read. `moves`: its count before; what is found is right while it is the same.

    Reading it ends early when `stop` is set, and then it is not `usable`.
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
        #: Whether it has everything, and no two digests begin in the same way.
        self.usable = bool(np.all(self._keys[1:] != self._keys[:-1]))
        self.usable &= stop is None or not stop.is_set()

    def find(self, digests: Collection[bytes]) -> Located:
        """Where those of `digests` lie that the store holds."""
        keys = _starts(b"".join(digests))
        at = np.searchsorted(self._keys, keys)
        inside = at < len(self._keys)
        at = at[inside]
        at = at[self._keys[at] == keys[inside]]
        whole = len(at) == len(keys) and not np.any(self._damaged[at])
        return Located(self._names, self._pack[at], self._offset[at], whole)


def _starts(digests: bytes) -> NDArray[np.uint64]:
    return np.frombuffer(digests, _DIGEST_START)[::4].astype(np.uint64)
