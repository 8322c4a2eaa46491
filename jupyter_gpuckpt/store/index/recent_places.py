"""The places of the chunks of the snapshot that was looked up last.

A save looks up the chunks of the kernel's newest snapshot, which the save before it has just looked up, and then those of the new one,
most of which are the same. Of 100,000 chunks each look-up in the database takes 0.3 s.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import NamedTuple, Protocol

import numpy as np

from .places import PlaceRows, Places, digests_in, unique

#: Look-ups of fewer chunks are not remembered, because the database is quick enough for them.
_FEW = 1000
#: The most rows that are remembered, as a multiple of the rows of the last look-up.
_MOST = 2


class _Catalog(Protocol):
    @property
    def moves(self) -> int: ...

    def locate(self, digests: Collection[bytes]) -> Places: ...


class _Kept(NamedTuple):
    """Rows that were looked up and are not damaged, and the catalog's count of moves before the look-up.

    `numbers`: the number of each row by its digest; `lengths`: the stored lengths, in the order of the rows.
    """

    rows: PlaceRows
    numbers: dict[bytes, int]
    lengths: list[int]
    packs: list[str]
    moves: int


class RecentPlaces:
    """A cache of places, which are valid as long as no chunk moves, is removed or is found damaged. Thread-safe."""

    def __init__(self, catalog: _Catalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._last: _Kept | None = None

    def locate(self, digests: Collection[bytes], *, keep: bool = False) -> Places:
        """Return the places of those of `digests` that the store has, as `Catalog.locate` does; with `keep` they are remembered.

        Rows that are remembered already stay, because a resume looks up its snapshot in parts, unless there would be too many (`_MOST`).
        """
        moves, wanted = self._catalog.moves, unique(digests)
        kept = self._kept(moves)
        if kept is None:
            found = self._catalog.locate(wanted)
            if keep and len(wanted) >= _FEW:
                self._keep(_remembered(found.rows, list(found.packs), moves))
            return found
        both = kept.numbers.keys() & wanted
        new = self._catalog.locate(wanted - both if len(both) < len(wanted) else ())
        packs = {name: number for number, name in enumerate(kept.packs)}
        renumbered = [packs.setdefault(name, len(packs)) for name in new.packs]
        rows = new.rows.copy()
        rows["pack"] = np.array(renumbered, rows["pack"].dtype)[rows["pack"]]
        found = Places([_chosen(kept, both), rows], list(packs))
        if keep and len(wanted) >= _FEW and len(rows):
            if len(kept.rows) + len(rows) <= _MOST * len(found):
                self._keep(_extended(kept, rows, list(packs)))
            else:
                self._keep(_remembered(found.rows, list(packs), moves))
        return found

    def known(self, digests: Collection[bytes]) -> dict[bytes, int]:
        """Return the stored lengths of those of `digests` that are remembered, by digest. None of them is known to be damaged."""
        kept = self._kept(self._catalog.moves)
        if kept is None:
            return {}
        numbers, lengths = kept.numbers, kept.lengths
        return {digest: lengths[numbers[digest]] for digest in digests if digest in numbers}

    def has_all(self, digests: set[bytes]) -> bool:
        """Return whether all of `digests` are remembered. None of them is known to be damaged."""
        kept = self._kept(self._catalog.moves)
        return kept is not None and digests <= kept.numbers.keys()

    def _kept(self, moves: int) -> _Kept | None:
        with self._lock:
            return self._last if self._last is not None and self._last.moves == moves else None

    def _keep(self, kept: _Kept) -> None:
        with self._lock:
            self._last = kept


def _remembered(rows: PlaceRows, packs: list[str], moves: int) -> _Kept:
    # A damaged chunk is stored again elsewhere, which does not count as a move.
    rows = rows[rows["damaged"] == 0]
    numbers = dict(zip(digests_in(rows), range(len(rows)), strict=True))
    return _Kept(rows, numbers, rows["stored_length"].tolist(), packs, moves)


def _extended(kept: _Kept, rows: PlaceRows, packs: list[str]) -> _Kept:
    """Return what is remembered with further rows, whose chunks it lacks."""
    new = _remembered(rows, packs, kept.moves)
    numbers = kept.numbers | {digest: len(kept.rows) + at for digest, at in new.numbers.items()}
    together = np.concatenate([kept.rows, new.rows])
    return _Kept(together, numbers, kept.lengths + new.lengths, packs, kept.moves)


def _chosen(kept: _Kept, digests: set[bytes]) -> PlaceRows:
    """Return the remembered rows of these chunks."""
    if len(digests) == len(kept.numbers):
        return kept.rows
    chosen = np.fromiter(map(kept.numbers.__getitem__, digests), np.int64, len(digests))
    return kept.rows[np.sort(chosen)]
