"""The digests of GPU memory in snapshots: by them the next save of the kernel finds out what it need not copy.

A table is a stream beside the memory's own, and says of which chunks that consists. A table that is missing, damaged, of another
format or of other chunks is not used: then all memory is copied. So are chunks that the store does not have any more.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..engine.gpu.driver.digests import DIGEST_BYTES, PIECE, SEED_BYTES, MemoryTable, Ranges, Span
from ..engine.gpu.ferry.ferry_copies import FerryCopy
from ..errors import StoreError
from ..images.pack import BytesSource
from ..images.partial import Layout, Usable, usable
from ..images.unpack import read_stream
from ..store.codecs import digest_of
from ..store.local import LocalStore
from ..store.manifests import digests_of
from ..wire import decoding
from ..wire.manifest_records import Stream

logger = logging.getLogger(__name__)

#: What is before the name of the memory's stream in the name of the stream with its table.
_PREFIX = "digests/"
#: The kind of the digests; other numbers are those of later versions.
_KIND = 1
_LENGTH = struct.Struct("<I")


class _Description(msgspec.Struct):
    """What is at the end of a table, before its own length; the digests are before it, so that their place does not depend on it."""

    kind: int
    seed: bytes
    spans: list[tuple[int, int]]
    #: The digest of the list of the memory's chunks.
    chunks: bytes


class _Earlier(NamedTuple):
    """The table of a stream, and its chunks."""

    table: MemoryTable
    layout: Layout


class EarlierGpuMemory:
    """The GPU memory in a snapshot of the kernel that is saved now; an implementation of `engine.gpu.digests.EarlierMemory`.

    `digests`: those of the streams' stored chunks, if the caller has them. The caller must hold these chunks in the store, from before
    `prepare` until the new snapshot is published.
    """

    def __init__(
        self, streams: Sequence[Stream], store: LocalStore, digests: set[bytes] | None = None
    ) -> None:
        self._streams, self._store = {stream.name: stream for stream in streams}, store
        self._digests = digests_of(streams) if digests is None else digests
        self._usable: dict[str, Usable] = {}
        self._earlier: dict[str, _Earlier | None] = {}

    def prepare(self) -> None:
        """Read the tables. Call it before the freeze: a thread that did it meanwhile would prolong that by a fifth."""
        names = [name for name in self._streams if f"{_PREFIX}{name}" in self._streams]
        if names:
            missing = self._store.missing(self._digests)
            self._earlier = {name: self._read(name, missing) for name in names}

    def seed(self, stream: str) -> bytes | None:
        """Return the seed of the earlier digests; None if there are none."""
        earlier = self._earlier.get(stream)
        return earlier.table.seed if earlier else None

    def lacking(self, stream: str, table: MemoryTable) -> Ranges | None:
        """Return the ranges of the stream that the store lacks; None: all."""
        earlier = self._earlier.get(stream)
        if earlier is None or earlier.table.seed != table.seed:
            return None
        origin = _origin(earlier.table, table)
        found = usable(earlier.layout, origin, PIECE)
        if found is None:
            return None
        self._usable[stream] = found
        return found.ranges

    def usable(self, stream: str) -> Usable:
        """Return what `lacking` has found."""
        return self._usable[stream]

    def _read(self, stream: str, missing: set[bytes]) -> _Earlier | None:
        memory = self._streams[stream]
        try:
            table = _parsed(read_stream(self._streams[f"{_PREFIX}{stream}"], self._store), memory)
            if table is None:
                return None
            return _Earlier(table, Layout(memory, missing))
        except (StoreError, ValueError, msgspec.DecodeError) as error:
            logger.warning(
                "All GPU memory is stored, as its former digests cannot be used: %s", error
            )
            return None


def sources(copies: Mapping[str, FerryCopy], streams: Sequence[Stream]) -> Iterator[BytesSource]:
    """Yield the tables of the copies that have one, to be stored; `streams`: the stored memory."""
    by_name = {stream.name: stream for stream in streams}
    for name, copy in copies.items():
        if copy.table is not None:
            yield BytesSource(f"{_PREFIX}{name}", _encoded(copy.table, by_name[name]))


def _encoded(table: MemoryTable, memory: Stream) -> bytes:
    spans = [(span.address, span.bytes) for span in table.spans]
    described = msgspec.msgpack.encode(_Description(_KIND, table.seed, spans, _chunks_of(memory)))
    return b"".join([table.digests.tobytes(), described, _LENGTH.pack(len(described))])


def _parsed(data: bytes, memory: Stream) -> MemoryTable | None:
    """Return a table; None if it is of another kind or of other chunks. Raises ValueError and DecodeError if it is damaged."""
    (length,) = _LENGTH.unpack(data[-_LENGTH.size :]) if len(data) >= _LENGTH.size else (0,)
    end = len(data) - _LENGTH.size - length
    if end < 0:
        raise ValueError("it is too short")
    described = decoding.from_msgpack(data[end : end + length], _Description)
    if described.kind != _KIND or described.chunks != _chunks_of(memory):
        return None
    spans = [Span(*span) for span in described.spans]
    pieces = sum(span.bytes for span in spans) // PIECE
    sound = all(span.bytes > 0 and span.bytes % PIECE == 0 for span in spans)
    if not sound or pieces * PIECE != memory.length or pieces * DIGEST_BYTES != end:
        raise ValueError("it is not that of the memory")
    if len(described.seed) != SEED_BYTES:
        raise ValueError("it has no key")
    digests = np.frombuffer(data[:end], np.uint64).reshape(pieces, -1)
    return MemoryTable(described.seed, spans, digests)


def _chunks_of(memory: Stream) -> bytes:
    return digest_of(msgspec.msgpack.encode(memory.chunks))


def _origin(earlier: MemoryTable, now: MemoryTable) -> NDArray[np.int64]:
    """Return for each piece of memory the number of the earlier piece at its address if that had the same digest, else -1."""
    before, after = _addresses(earlier), _addresses(now)
    if not len(before) or not len(after):
        return np.full(len(after), -1, np.int64)
    if earlier.spans == now.spans:
        at = np.arange(len(after))
    else:
        order = np.argsort(before, kind="stable")
        at = order[np.minimum(np.searchsorted(before[order], after), len(before) - 1)]
    same = (before[at] == after) & (earlier.digests[at] == now.digests).all(axis=1)
    return np.where(same, at, -1)


def _addresses(table: MemoryTable) -> NDArray[np.uint64]:
    """Return the address of each piece."""
    parts = [
        np.uint64(span.address) + np.arange(0, span.bytes, PIECE, dtype=np.uint64)
        for span in table.spans
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)
