"""Index objects: what lies in many packs, so that not every pack has to be asked.

They are a convenience. An index that is missing makes chunks go up again, and readers ask the packs themselves; one that names a
pack that is gone is noticed by who wants something of that pack.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...errors import FarObjectInvalid, FarObjectMissing
from .buckets import Bucket
from .far_packs import ROW, PackRef, Rows, checked_rows
from .sealing import Seal, invalid

logger = logging.getLogger(__name__)

FOLDER = "indexes"
#: Beyond so many they are made one.
MOST_INDEXES = 64
_MOST_ROWS = 1_000_000
_READERS = 8


class PackRows(msgspec.Struct, frozen=True):
    """A pack, and what lies in it: rows of `far_packs.ROW`."""

    ref: PackRef
    rows: bytes


class _Index(msgspec.Struct, frozen=True):
    packs: list[PackRows]


class Place(NamedTuple):
    """Where a chunk lies."""

    ref: PackRef
    row: np.void


def write(bucket: Bucket, seal: Seal, packs: Sequence[PackRows]) -> str:
    """Write an index of some packs; its name."""
    name = f"{FOLDER}/{os.urandom(16).hex()}"
    bucket.create(name, seal.seal_record(name, _Index(list(packs))))
    return name


def is_name(name: str) -> bool:
    """Whether an index can be called so."""
    folder, _, rest = name.partition("/")
    return folder == FOLDER and len(rest) == 32 and not rest.strip("0123456789abcdef")


class FarIndex:
    """What lies where, by far ids. A few bytes for each chunk: a store may have millions."""

    def __init__(self, packs: Iterable[PackRows]) -> None:
        self.packs: dict[str, PackRows] = {one.ref.name: one for one in packs}
        self._refs = [one.ref for one in self.packs.values()]
        parts = [checked_rows(one.ref, one.rows) for one in self.packs.values()]
        self._rows: Rows = np.concatenate([np.empty(0, ROW), *parts])
        counts = [len(part) for part in parts]
        self._pack_of = np.repeat(np.arange(len(parts), dtype=np.uint32), counts)
        heads = _heads(self._rows["id"].tobytes())
        self._order = np.argsort(heads, kind="stable")
        self._heads = heads[self._order]

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, far_ids: Collection[bytes], without: Collection[str] = ()) -> dict[bytes, Place]:
        """Return where those of `far_ids` lie that lie in any pack but those named in `without`."""
        wanted = list(far_ids)
        found: dict[bytes, Place] = {}
        heads = _heads(b"".join(wanted))
        starts = np.searchsorted(self._heads, heads, "left").tolist()
        ends = np.searchsorted(self._heads, heads, "right").tolist()
        for far_id, start, end in zip(wanted, starts, ends, strict=True):
            for number in self._order[start:end].tolist():
                row, ref = self._rows[number], self._refs[self._pack_of[number]]
                if row["id"].tobytes() == far_id and ref.name not in without:
                    found[far_id] = Place(ref, row)
                    break
        return found


def load(bucket: Bucket, seal: Seal) -> tuple[FarIndex, list[str]]:
    """Return what all index objects say together, and the names of those. One that is not sound is logged and left out.

    Raises FormatTooNew.
    """
    names = [found.name for found in bucket.list(FOLDER) if is_name(found.name)]

    def read(name: str) -> tuple[str, list[PackRows]] | None:
        try:
            return name, _read(bucket, seal, name)
        except FarObjectMissing:
            return None  # it was just made part of another
        except FarObjectInvalid as error:
            logger.warning("What it names is uploaded again: %s", error)
            return None

    with ThreadPoolExecutor(_READERS, "index") as pool:
        found = [one for one in pool.map(read, names) if one]
    return FarIndex(one for _, packs in found for one in packs), [name for name, _ in found]


def consolidate(bucket: Bucket, seal: Seal, *, without: Collection[str] = ()) -> None:
    """Make few index objects of many, without those packs. New ones first: whoever reads meanwhile finds everything."""
    index, names = load(bucket, seal)
    part: list[PackRows] = []
    rows = 0
    for one in index.packs.values():
        if one.ref.name in without:
            continue
        part.append(one)
        rows += len(one.rows) // ROW.itemsize
        if rows >= _MOST_ROWS:
            write(bucket, seal, part)
            part, rows = [], 0
    if part:
        write(bucket, seal, part)
    bucket.delete(names)


def _read(bucket: Bucket, seal: Seal, name: str) -> list[PackRows]:
    packs = seal.open_record(name, bucket.get(name).data, _Index).packs
    for one in packs:
        checked_rows(one.ref, one.rows)
    if len({one.ref.name for one in packs}) < len(packs):
        raise invalid(name, "it names a pack twice")
    return packs


def _heads(far_ids: bytes) -> NDArray[np.uint64]:
    """Return the first eight bytes of each id, as numbers."""
    return np.frombuffer(far_ids, "<u8").reshape(-1, 4)[:, 0].copy()
