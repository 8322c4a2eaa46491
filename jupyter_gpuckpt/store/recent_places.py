"""The places of the chunks of the snapshot that was looked up last.

A save looks up the chunks of the kernel's newest snapshot, which the save before it has just looked up, and then those of the new one,
most of which are the same. Of 100,000 chunks each look-up in the database takes 0.3 s.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import NamedTuple, Protocol

import numpy as np

from .places import PlaceRows, Places, digests_in

#: So many are looked up at once quickly enough.
_FEW = 1000


class _Catalog(Protocol):
    @property
    def moves(self) -> int: ...

    def locate(self, digests: Collection[bytes]) -> Places: ...


class _Kept(NamedTuple):
    """Rows that were looked up, the number of each by its digest, and the catalog's count of moves before the look-up."""

    rows: PlaceRows
    numbers: dict[bytes, int]
    packs: list[str]
    moves: int


class RecentPlaces:
    """A cache of places, which are valid as long as no chunk moves, is removed or is found damaged. Thread-safe."""

    def __init__(self, catalog: _Catalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._kept: _Kept | None = None

    def locate(self, digests: Collection[bytes], *, keep: bool = False) -> Places:
        """Return the places of those of `digests` that the store has, as `Catalog.locate` does; with `keep` they are remembered."""
        if len(digests) < _FEW:
            return self._catalog.locate(digests)
        moves, digests = self._catalog.moves, set(digests)
        with self._lock:
            kept = self._kept
        if kept is not None and kept.moves != moves:
            kept = None
        found = self._with(kept, digests) if kept else self._catalog.locate(digests)
        if keep:
            self._keep(found, moves)
        return found

    def stored_lengths(self, digests: set[bytes]) -> dict[bytes, int]:
        """Return the stored lengths of the undamaged chunks among `digests`, by digest. The result may contain further chunks."""
        moves = self._catalog.moves
        with self._lock:
            kept = self._kept
        if kept is not None and kept.moves == moves and digests <= kept.numbers.keys():
            return dict(zip(kept.numbers, kept.rows["stored_length"].tolist(), strict=True))
        found = self.locate(digests).undamaged()
        return dict(zip(found.digests, found.rows["stored_length"].tolist(), strict=True))

    def _with(self, kept: _Kept, digests: set[bytes]) -> Places:
        known = kept.rows
        both = digests.intersection(kept.numbers)
        if len(both) < len(kept.numbers):
            chosen = np.fromiter(map(kept.numbers.__getitem__, both), np.int64, len(both))
            known = known[np.sort(chosen)]
        new = self._catalog.locate(digests.difference(both))
        packs = {name: number for number, name in enumerate(kept.packs)}
        renumbered = [packs.setdefault(name, len(packs)) for name in new.packs]
        rows = new.rows.copy()
        rows["pack"] = np.array(renumbered, rows["pack"].dtype)[rows["pack"]]
        return Places([known, rows], list(packs))

    def _keep(self, found: Places, moves: int) -> None:
        # A damaged chunk is stored again elsewhere, which does not count as a move.
        rows = found.rows[found.rows["damaged"] == 0]
        numbers = dict(zip(digests_in(rows), range(len(rows)), strict=True))
        with self._lock:
            self._kept = _Kept(rows, numbers, list(found.packs), moves)
