"""Far packs: chunks as the local store has them, each encrypted by itself, in one object that is written once.

    header    as of every object (sealing.py); from it comes the pack's key
    record *  nonce, encrypted payload with its tag; the chunk's far id, codec and raw length are associated data
    index     nonce, one encrypted row (`ROW`) per record
    trailer   how many bytes of index, how many rows, magic

A pack describes itself: index objects only spare asking every one. All numbers are little-endian.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..codecs import DIGEST_BYTES, MOST_CHUNK_BYTES
from ..packs import Entry
from .sealing import HEADER_BYTES, NONCE_BYTES, TAG_BYTES, Seal, decrypted, invalid

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FOLDER = "packs"
#: A pack is closed when it has grown to this; one record may go beyond.
PACK_BYTES = 32 << 20
MOST_PACK_BYTES = PACK_BYTES + MOST_CHUNK_BYTES + (16 << 20)

#: Where a chunk lies: its id on the remote, where its record begins, and what the local store says of it.
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

_OVERHEAD = NONCE_BYTES + TAG_BYTES
_TRAILER = struct.Struct("<II8s")
_TRAILER_MAGIC = b"GPUCKFX\n"
TRAILER_BYTES = _TRAILER.size
_BESIDE = struct.Struct(f"<{DIGEST_BYTES}sBI")


class PackRef(msgspec.Struct, frozen=True):
    """A pack as others name it. `length`: of the object; `index_length`: of its end, from the index on."""

    name: str
    length: int
    index_length: int


class FarPack(NamedTuple):
    """A pack that was made: the object, and what lies in it."""

    ref: PackRef
    data: bytearray
    rows: Rows


class FarChunk(NamedTuple):
    """A chunk that was read: `payload` is what `codec` made of its `raw_length` bytes."""

    far_id: bytes
    codec: int
    payload: bytes
    raw_length: int


def new_name() -> str:
    """Return the name of a new pack, which tells nothing."""
    return f"{FOLDER}/{os.urandom(16).hex()}"


def is_name(name: str) -> bool:
    """Whether a pack can be called so: names come from the remote."""
    folder, _, rest = name.partition("/")
    return folder == FOLDER and len(rest) == 32 and not rest.strip("0123456789abcdef")


def build(
    seal: Seal,
    chunks: Sequence[Entry],
    read: Callable[[bytes], tuple[int, bytes, int]],
) -> FarPack:
    """Return a new pack of these chunks of the local store; `read` gives codec, payload and raw length of one."""
    name, (header, key) = new_name(), seal.begin()
    data = bytearray(header)
    rows = np.zeros(len(chunks), ROW)
    for row, chunk in zip(rows, chunks, strict=True):
        codec, payload, raw_length = read(chunk.digest)
        far_id = seal.far_id(chunk.digest)
        row["id"], row["offset"], row["codec"] = np.void(far_id), len(data), codec
        row["stored_length"], row["raw_length"] = len(payload), raw_length
        nonce = os.urandom(NONCE_BYTES)
        data += nonce
        data += key.encrypt(nonce, payload, _BESIDE.pack(far_id, codec, raw_length))
    nonce = os.urandom(NONCE_BYTES)
    index = nonce + key.encrypt(nonce, rows.tobytes(), seal.said_beside(name, header))
    data += index
    data += _TRAILER.pack(len(index), len(rows), _TRAILER_MAGIC)
    return FarPack(PackRef(name, len(data), len(index) + TRAILER_BYTES), data, rows)


def rows_of(seal: Seal, ref: PackRef, header: bytes, end: bytes) -> Rows:
    """Return what lies in a pack, from its header and its end. Raises FarObjectInvalid, FormatTooNew."""
    key = seal.key_of(ref.name, header)
    if len(end) != ref.index_length or len(end) < TRAILER_BYTES:
        raise invalid(ref.name, "it is truncated")
    index, (length, count, magic) = end[:-TRAILER_BYTES], _TRAILER.unpack(end[-TRAILER_BYTES:])
    if magic != _TRAILER_MAGIC or length != len(index):
        raise invalid(ref.name, "its end is missing or altered")
    beside = seal.said_beside(ref.name, header)
    data = decrypted(ref.name, key, index[:NONCE_BYTES], index[NONCE_BYTES:], beside)
    if len(data) != count * ROW.itemsize:
        raise invalid(ref.name, "its index has another length")
    return checked_rows(ref, data)


def checked_rows(ref: PackRef, data: bytes) -> Rows:
    """Return the rows in `data` if they lie inside the pack. Raises FarObjectInvalid."""
    if not (
        is_name(ref.name)
        and HEADER_BYTES + ref.index_length <= ref.length <= MOST_PACK_BYTES
        and ref.index_length >= 0
        and len(data) % ROW.itemsize == 0
    ):
        raise invalid(ref.name, "what is said of it cannot be")
    rows = np.frombuffer(data, ROW)
    ends = rows["offset"].astype(np.uint64) + rows["stored_length"] + np.uint64(_OVERHEAD)
    if len(rows) and not (
        rows["offset"].min() >= HEADER_BYTES
        and ends.max() <= ref.length - ref.index_length
        and rows["raw_length"].max() <= MOST_CHUNK_BYTES
    ):
        raise invalid(ref.name, "its index leads elsewhere")
    return rows


def record_bounds(row: np.void) -> tuple[int, int]:
    """Return where a chunk's record begins and ends in its pack."""
    start = int(row["offset"])
    return start, start + int(row["stored_length"]) + _OVERHEAD


def open_chunk(name: str, key: AESGCM, row: np.void, record: bytes) -> FarChunk:
    """Return the chunk whose record was read from the pack `name`. Raises FarObjectInvalid."""
    far_id, codec = row["id"].tobytes(), int(row["codec"])
    raw_length = int(row["raw_length"])
    beside = _BESIDE.pack(far_id, codec, raw_length)
    payload = decrypted(name, key, record[:NONCE_BYTES], record[NONCE_BYTES:], beside)
    return FarChunk(far_id, codec, payload, raw_length)
