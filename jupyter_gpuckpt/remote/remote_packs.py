"""Remote packs: objects of many chunks, each chunk compressed as in the local store and encrypted by itself. A pack is written once.

    header    as of every object (sealing.py); from it comes the pack's key
    record *  nonce, encrypted payload with its tag; the chunk's remote id, codec and raw length are associated data
    index     nonce, one encrypted row (`ROW`) per record
    trailer   length of the index in bytes, number of rows, magic

A pack can be read without any other object; index objects only save requests. All numbers are little-endian.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..linux.control_groups import processors
from ..linux.fresh_memory import Scratch
from ..store.codecs import DIGEST_BYTES, MAX_CHUNK_BYTES
from .buckets import Bucket
from .pack_refs import FOLDER, MAX_PACK_BYTES, PackRef, is_name
from .sealing import HEADER_BYTES, NONCE_BYTES, TAG_BYTES, Seal, decrypt_into, decrypted, invalid

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

#: The row of a chunk: its remote id, the offset of its record, and its lengths and codec as in the local store.
ROW = np.dtype(
    [
        ("id", f"V{DIGEST_BYTES}"),
        ("offset", "<u4"),
        ("stored_length", "<u4"),
        ("raw_length", "<u4"),
        ("codec", "u1"),
        ("", "V3"),
    ]
)
#: An array of ROW.
Rows = NDArray[Any]

#: How many packs are checked at the same time.
_READERS = 8
#: How many nonces are drawn at a time.
_NONCES = 256
_OVERHEAD = NONCE_BYTES + TAG_BYTES
_TRAILER = struct.Struct("<II8s")
_TRAILER_MAGIC = b"GPUCKFX\n"
TRAILER_BYTES = _TRAILER.size
_ASSOCIATED_DATA = struct.Struct(f"<{DIGEST_BYTES}sBI")


class RemotePack(NamedTuple):
    """A new pack: its reference, the object's content, and its rows."""

    ref: PackRef
    data: memoryview
    rows: Rows


class RemoteChunk(NamedTuple):
    """A chunk that was read: `payload` is the result of compressing its `raw_length` bytes with `codec`."""

    remote_id: bytes
    codec: int
    payload: bytes | memoryview
    raw_length: int


def workers() -> int:
    """Return how many threads make or check packs at a time.

    Other processors are for the endpoint's connections and the kernels. There are at least two threads, because then the first pack is
    ready earlier, also on two processors. With more than four the work would take as long, because a part of it holds the GIL.
    """
    return max(2, min(4, processors() // 4))


def new_name() -> str:
    """Return a random name for a new pack: it reveals nothing about the content."""
    return f"{FOLDER}/{os.urandom(16).hex()}"


def gone(bucket: Bucket, packs: Collection[PackRef]) -> set[str]:
    """Return the names of those packs that the remote lacks or has with another length. One request per pack: lists are not trusted."""

    def is_gone(ref: PackRef) -> bool:
        found = bucket.head(ref.name)
        return found is None or found.size != ref.length

    with ThreadPoolExecutor(_READERS, "look") as pool:
        answers = list(pool.map(is_gone, packs))
    return {ref.name for ref, is_it in zip(packs, answers, strict=True) if is_it}


def are_there(bucket: Bucket, packs: Collection[PackRef], condemned: set[str]) -> bool:
    """Return whether the remote has all of these packs and none of them is condemned."""
    return condemned.isdisjoint(ref.name for ref in packs) and not gone(bucket, packs)


class OtherLengthError(Exception):
    """An error about a chunk whose length differs from the length reserved for it in the pack."""


class NewPack:
    """A pack that is being made. The lengths of its chunks are known, so several threads can each encrypt a part of them.

    Its content lies in `memory` and is valid until `memory` is used again.
    """

    def __init__(self, seal: Seal, stored_lengths: Sequence[int], memory: Scratch) -> None:
        self._seal, self._name = seal, new_name()
        self._header, self._key = seal.begin()
        self._rows: Rows = np.zeros(len(stored_lengths), ROW)
        self._rows["stored_length"] = stored_lengths
        _, ends = bounds(self._rows)
        ends = np.cumsum(ends) + np.uint64(HEADER_BYTES)
        self._rows["offset"] = np.concatenate([[HEADER_BYTES], ends[:-1]])
        self._end = int(ends[-1])
        self._data = memory.get(MAX_PACK_BYTES)
        self._data[:HEADER_BYTES] = self._header

    def fill(self, first: int, chunks: Iterable[RemoteChunk]) -> None:
        """Encrypt chunks, the first of which has the number `first` in the pack. Raises OtherLengthError."""
        data, key, nonces = self._data, self._key, _nonces()
        rows = self._rows[first:]
        starts, lengths = rows["offset"].tolist(), rows["stored_length"].tolist()
        # Several threads do this, and each step that gives up the GIL may wait for it again: so there are few for each chunk.
        remote_ids, numbers = [], []
        for start, length, chunk in zip(starts, lengths, chunks, strict=False):
            remote_id, codec, payload, raw_length = chunk
            if len(payload) != length:
                raise OtherLengthError(f"a chunk has {len(payload)} bytes, and not {length}")
            remote_ids.append(remote_id)
            numbers.append((raw_length, codec))
            nonce, sealed = next(nonces), start + NONCE_BYTES
            data[start:sealed] = nonce
            associated = _ASSOCIATED_DATA.pack(remote_id, codec, raw_length)
            key.encrypt_into(nonce, payload, associated, data[sealed : sealed + length + TAG_BYTES])
        done = rows[: len(remote_ids)]
        done["id"] = np.frombuffer(b"".join(remote_ids), ROW["id"])
        done[["raw_length", "codec"]] = numbers

    def finish(self) -> RemotePack:
        """Return the pack; all of its chunks were encrypted."""
        nonce, rows, end = next(_nonces()), self._rows, self._end
        associated = self._seal.associated_data(self._name, self._header)
        index = nonce + self._key.encrypt(nonce, rows.tobytes(), associated)
        rest = index + _TRAILER.pack(len(index), len(rows), _TRAILER_MAGIC)
        self._data[end : end + len(rest)] = rest
        ref = PackRef(self._name, end + len(rest), len(rest))
        return RemotePack(ref, self._data[: end + len(rest)], rows)


def build(seal: Seal, chunks: Sequence[RemoteChunk], memory: Scratch) -> RemotePack:
    """Return a new pack of these chunks. Its content lies in `memory` and is valid until `memory` is used again."""
    pack = NewPack(seal, [len(chunk.payload) for chunk in chunks], memory)
    pack.fill(0, chunks)
    return pack.finish()


def _nonces() -> Iterator[bytes]:
    """Yield random nonces, as many as are asked for."""
    while True:
        drawn = os.urandom(_NONCES * NONCE_BYTES)
        for start in range(0, len(drawn), NONCE_BYTES):
            yield drawn[start : start + NONCE_BYTES]


def rows_of(seal: Seal, ref: PackRef, header: bytes, end: bytes) -> Rows:
    """Return the rows of a pack, read from its header and its end. Raises RemoteObjectInvalid, FormatTooNew."""
    key = seal.key_of(ref.name, header)
    if len(end) != ref.index_length or len(end) < TRAILER_BYTES:
        raise invalid(ref.name, "it is truncated")
    index, (length, count, magic) = end[:-TRAILER_BYTES], _TRAILER.unpack(end[-TRAILER_BYTES:])
    if magic != _TRAILER_MAGIC or length != len(index):
        raise invalid(ref.name, "its trailer is missing or altered")
    associated = seal.associated_data(ref.name, header)
    data = decrypted(ref.name, key, index[:NONCE_BYTES], index[NONCE_BYTES:], associated)
    if len(data) != count * ROW.itemsize:
        raise invalid(ref.name, "its index has another length")
    return checked_rows(ref, data)


def checked_rows(ref: PackRef, data: bytes) -> Rows:
    """Return the rows in `data` if they lie inside the pack. Raises RemoteObjectInvalid."""
    if not (
        is_name(ref.name)
        and HEADER_BYTES + ref.index_length <= ref.length <= MAX_PACK_BYTES
        and ref.index_length >= 0
        and len(data) % ROW.itemsize == 0
    ):
        raise invalid(ref.name, "the lengths in its reference are impossible")
    rows = np.frombuffer(data, ROW)
    starts, ends = bounds(rows)
    if len(rows) and not (
        starts.min() >= HEADER_BYTES
        and ends.max() <= ref.length - ref.index_length
        and rows["raw_length"].max() <= MAX_CHUNK_BYTES
    ):
        raise invalid(ref.name, "its index points outside its records")
    return rows


def bounds(rows: Rows) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the offsets at which the records of chunks begin and end in the pack."""
    starts = rows["offset"].astype(np.uint64)
    return starts, starts + rows["stored_length"] + np.uint64(_OVERHEAD)


def open_chunks(
    name: str, key: AESGCM, rows: Rows, data: memoryview, start: int, room: memoryview
) -> Iterator[RemoteChunk]:
    """Decrypt the records of `rows` in `data`, which was read from `start` of the pack `name`, into `room`. Raises RemoteObjectInvalid."""
    end = 0
    for remote_id, offset, length, raw_length, codec, *_ in rows.tolist():
        record = data[offset - start : offset - start + length + _OVERHEAD]
        payload, end = room[end : end + length], end + length
        associated = _ASSOCIATED_DATA.pack(remote_id, codec, raw_length)
        decrypt_into(name, key, record, associated, payload)
        yield RemoteChunk(bytes(remote_id), codec, payload, raw_length)
