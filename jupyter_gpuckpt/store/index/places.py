"""The places of chunks, pack and offset: tables of many of them, those that were looked up last, and those of all chunks.

A GB has 4,000 chunks, and a Python object for each would hold the GIL too long during a resume.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, Protocol

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
#: The first bytes of a digest.
_DIGEST_START = np.dtype(">u8")
#: Look-ups of fewer chunks are not remembered, because the database is quick enough for them.
_FEW = 1000
#: The most rows that are remembered, as a multiple of the rows of the last look-up.
_MOST = 2

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


class _Catalog(Protocol):
    @property
    def moves(self) -> int: ...

    def locate(self, digests: Collection[bytes]) -> Places: ...

    def walk(self, numbers: dict[str, int]) -> Iterator[PlaceRows]: ...


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
    """The places of the chunks of the snapshot that was looked up last. Thread-safe.

    They are valid as long as no chunk moves, is removed or is found damaged. A save looks up the chunks of the kernel's newest
    snapshot, which the save before it has just looked up, and then those of the new one, most of which are the same. Of 100,000 chunks
    each look-up in the database takes 0.3 s.
    """

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


class Located(NamedTuple):
    """The places of chunks as columns, damaged ones included.

    `pack`: index into `names`. `complete`: every requested chunk exists and is not known to be damaged.
    """

    names: list[str]
    pack: NDArray[np.uint32]
    offset: NDArray[np.uint64]
    complete: bool


class PlaceIndex:
    """An in-memory index of the places of all chunks at the moment of its construction.

    It is several times faster than the catalog when many snapshots are recorded, and takes 21 bytes per chunk: only the first 8 bytes
    of digests are kept.

    `moves`: the catalog's count before; results are valid while that count is the same. Reading ends early when `stop` is set, and
    the index is not `usable` then.
    """

    def __init__(self, catalog: _Catalog, stop: threading.Event | None = None) -> None:
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
