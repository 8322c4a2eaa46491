"""Digests of GPU memory: by them a save knows which memory has not changed since an earlier snapshot, and does not copy it.

The library computes them on the GPU (ferry_digest.c, which names the function). For two different contents of a piece the digests are
the same for one of 2**128 keys at most. The key is random, and nothing that a program computes depends on it. A program that reads it
in its own process could make contents with the same digest, which would damage its own snapshots only.

Covers: keys, the table of digests, a second implementation that checks the first. Does not cover: which memory is in the store
(`snapshots.gpu_tables`), the orders to the library (`ferry.py`).
"""

from __future__ import annotations

import os
from typing import NamedTuple, Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

#: The bytes that have a digest, and of the digest.
PIECE = 64 << 10
DIGEST_BYTES = 32
SEED_BYTES = 32
#: The four keys overlap: each begins two words after the one before.
_KEY_WORDS, _SUMS, _SHIFT = PIECE // 4 + 8, 4, 2

#: A row for each piece.
Digests = NDArray[np.uint64]
Ranges = list[tuple[int, int]]


class Span(NamedTuple):
    """The memory of one part: its address and its bytes, a multiple of `PIECE`."""

    address: int
    bytes: int


class MemoryTable(NamedTuple):
    """The digests of a process's memory, in the order of its parts, and the seed of their key."""

    seed: bytes
    spans: list[Span]
    digests: Digests

    @property
    def bytes(self) -> int:
        """The bytes of all parts."""
        return sum(span.bytes for span in self.spans)


class EarlierMemory(Protocol):
    """What the store has of GPU memory, from an earlier snapshot of the kernel."""

    def seed(self, stream: str) -> bytes | None:
        """Return the seed of the earlier digests of a stream; None if there are none."""

    def lacking(self, stream: str, table: MemoryTable) -> Ranges | None:
        """Return the ranges of the stream that the store lacks, in order; None: all, because too little can be taken from it."""


class UnreliableDigestsError(Exception):
    """The error of digests that are not those of the memory."""


def new_seed() -> bytes:
    """Return a random seed of a key."""
    return os.urandom(SEED_BYTES)


def key_of(seed: bytes) -> bytes:
    """Return the key that a seed stands for, as the library reads it."""
    return blake3(seed).digest(4 * _KEY_WORDS)


def digest(piece: bytes | memoryview, key: bytes) -> NDArray[np.uint64]:
    """Return the digest of one piece."""
    words, keys = np.frombuffer(piece, np.uint32), np.frombuffer(key, np.uint32)
    # Sums of two words wrap around at 32 bits, products have 64, and their sum wraps around as well.
    added = [words + keys[_SHIFT * i : _SHIFT * i + len(words)] for i in range(_SUMS)]
    return np.array(
        [np.sum(a[::2].astype(np.uint64) * a[1::2].astype(np.uint64)) for a in added], np.uint64
    )


def check(piece: bytes, expected: NDArray[np.uint64], key: bytes) -> None:
    """Compare one piece with its digest. Raises UnreliableDigestsError."""
    if not np.array_equal(digest(piece, key), expected):
        raise UnreliableDigestsError("a digest is not that of the memory")


def parsed(data: bytes) -> Digests:
    """Return the digests that the library wrote. Raises UnreliableDigestsError where it wrote none."""
    found = np.frombuffer(data, np.uint64).reshape(-1, _SUMS)
    # The library sets the memory of the results to these bits before it computes them.
    if (found == np.uint64(0xFFFFFFFFFFFFFFFF)).all(axis=1).any():
        raise UnreliableDigestsError("the GPU computed nothing")
    return found
