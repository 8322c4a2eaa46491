"""The encoding of a composed chunk's parts in manifests: digest, start and length of each, in 32, 4 and 4 bytes, little-endian."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Part(NamedTuple):
    """A part of a composed chunk: `length` bytes from `start` of the stored chunk with this digest."""

    digest: bytes
    start: int
    length: int


_PART = struct.Struct("<32sII")
#: Bytes that a part takes in `Chunk.parts`.
PART_BYTES = _PART.size


def encoded_parts(parts: Iterable[Part]) -> bytes:
    """Encode parts in the form of `Chunk.parts`."""
    return b"".join(_PART.pack(*part) for part in parts)


def part_digests(parts: bytes) -> Iterator[bytes]:
    """Yield the digests in encoded parts; ignore a truncated last part."""
    whole = len(parts) - len(parts) % PART_BYTES
    return (digest for digest, _, _ in _PART.iter_unpack(parts[:whole]))


def decoded_parts(parts: bytes) -> Iterator[Part]:
    """Decode the value of `Chunk.parts`."""
    return map(Part._make, _PART.iter_unpack(parts))
