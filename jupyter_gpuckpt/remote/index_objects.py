"""Index objects: the rows of many packs in one object, so that an upload does not have to read the index of every pack.

Nothing depends on them. If an index object is missing, the chunks of its packs are uploaded again; a fetch reads the packs that its
manifest names. If an index object names a pack that no longer exists, the upload notices it when it checks the packs that it shares.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import RemoteObjectInvalid, RemoteObjectMissing, StoreError
from ..store.faults import store_errors
from ..store.manifests import TEMPORARY, replace_file
from .buckets import Bucket
from .pack_refs import INDEX_FOLDER, PackRef, PackRows
from .remote_packs import ROW, Rows, checked_rows
from .sealing import Seal, invalid

logger = logging.getLogger(__name__)

#: An upload that finds more index objects joins them.
MAX_INDEXES = 64
_MAX_ROWS = 1_000_000
_READERS = 8


class _Index(msgspec.Struct, frozen=True):
    packs: list[PackRows]


class Place(NamedTuple):
    """The place of a chunk in the remote."""

    ref: PackRef
    row: np.void


def write(bucket: Bucket, seal: Seal, packs: Sequence[PackRows]) -> str:
    """Write an index object for some packs; return its name."""
    name = f"{INDEX_FOLDER}/{os.urandom(16).hex()}"
    bucket.create(name, seal.seal_record(name, _Index(list(packs))))
    return name


def is_name(name: str) -> bool:
    """Return whether `name` is a possible name of an index object: names come from the remote."""
    folder, _, rest = name.partition("/")
    return folder == INDEX_FOLDER and len(rest) == 32 and not rest.strip("0123456789abcdef")


class RemoteIndex:
    """A lookup table from remote ids to packs. It takes about 80 bytes per chunk: a remote may have millions of chunks."""

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

    def find(
        self, remote_ids: Collection[bytes], without: Collection[str] = ()
    ) -> dict[bytes, Place]:
        """Return the places of those of `remote_ids` that are in any pack, leaving out the packs named in `without`."""
        wanted = list(remote_ids)
        found: dict[bytes, Place] = {}
        heads = _heads(b"".join(wanted))
        starts = np.searchsorted(self._heads, heads, "left").tolist()
        ends = np.searchsorted(self._heads, heads, "right").tolist()
        for remote_id, start, end in zip(wanted, starts, ends, strict=True):
            for number in self._order[start:end].tolist():
                row, ref = self._rows[number], self._refs[self._pack_of[number]]
                if row["id"].tobytes() == remote_id and ref.name not in without:
                    found[remote_id] = Place(ref, row)
                    break
        return found


def load(bucket: Bucket, seal: Seal, copies: Path | None = None) -> tuple[RemoteIndex, list[str]]:
    """Return the rows of all index objects, and the names of those objects. An invalid one is logged and left out.

    `copies`: a folder of this machine that keeps the index objects as they were received, so that each is received once: the content
    of a name never changes. Copies of objects that the remote no longer has are removed. Raises FormatTooNew.
    """
    names = [found.name for found in bucket.list(INDEX_FOLDER) if is_name(found.name)]

    def read(name: str) -> tuple[str, list[PackRows]] | None:
        try:
            return name, _read(bucket, seal, name, copies)
        except RemoteObjectMissing:
            return None  # another upload or a collector has just joined it with others
        except RemoteObjectInvalid as error:
            logger.warning("The chunks of its packs are uploaded again: %s", error)
            return None

    with ThreadPoolExecutor(_READERS, "index") as pool:
        found = [one for one in pool.map(read, names) if one]
    if copies:
        _remove_copies_except(copies, names)
    return RemoteIndex(one for _, packs in found for one in packs), [name for name, _ in found]


def consolidate(bucket: Bucket, seal: Seal, *, without: Collection[str] = ()) -> None:
    """Join index objects to few, leaving out the packs `without`. Write the new ones first: a concurrent reader finds every row."""
    index, names = load(bucket, seal)
    part: list[PackRows] = []
    rows = 0
    for one in index.packs.values():
        if one.ref.name in without:
            continue
        part.append(one)
        rows += len(one.rows) // ROW.itemsize
        if rows >= _MAX_ROWS:
            write(bucket, seal, part)
            part, rows = [], 0
    if part:
        write(bucket, seal, part)
    bucket.delete(names)


def _read(bucket: Bucket, seal: Seal, name: str, copies: Path | None) -> list[PackRows]:
    """Return the rows of an index object, from its copy on this machine if there is one."""
    copy = copies / Path(name).name if copies else None
    if copy:
        # A damaged copy is replaced below.
        with suppress(OSError, RemoteObjectInvalid):
            return _opened(seal, name, copy.read_bytes())
    data = bucket.get(name).data
    packs = _opened(seal, name, data)
    if copy:
        try:
            with store_errors(copy.parent):
                copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                replace_file(copy, data)
        except StoreError as error:
            logger.warning(
                "No copy of %s is kept, so the next upload receives it again: %s", name, error
            )
    return packs


def _opened(seal: Seal, name: str, data: bytes) -> list[PackRows]:
    """Return the rows in the content of an index object. Raises RemoteObjectInvalid, FormatTooNew."""
    packs = seal.open_record(name, data, _Index).packs
    for one in packs:
        checked_rows(one.ref, one.rows)
    if len({one.ref.name for one in packs}) < len(packs):
        raise invalid(name, "it names a pack twice")
    return packs


def _remove_copies_except(copies: Path, names: Collection[str]) -> None:
    kept = {Path(name).name for name in names}
    with suppress(OSError):  # the next upload tries again
        for path in copies.iterdir():
            if path.name.removesuffix(TEMPORARY) not in kept:
                path.unlink()


def _heads(remote_ids: bytes) -> NDArray[np.uint64]:
    """Return the first eight bytes of each id as a number."""
    return np.frombuffer(remote_ids, "<u8").reshape(-1, 4)[:, 0].copy()
