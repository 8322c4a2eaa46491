"""Kinds of data that notebooks hold, made alike everywhere. Run as source in kernels, so it needs numpy only.

No block repeats: what is found twice would be stored once by one side and twice by the other.
"""

from __future__ import annotations

import numpy as np

#: Every so many bytes are made at once.
_BLOCK = 16 << 20
_RUN = 1 << 16


def text(rng, size):
    """Words of eight letters, few of them frequent, as in tables of names and categories."""
    words = rng.integers(97, 123, (4096, 8), np.uint8).view(np.uint64).ravel()
    return words[(rng.random(size // 8, np.float32) ** 3 * 4096).astype(np.int32)]


def float32(rng, size):
    """Weights of a model: normally distributed, small."""
    return rng.standard_normal(size // 4, np.float32) * np.float32(0.02)


def bfloat16(rng, size):
    """Return the same numbers as bfloat16, which is the upper half of float32."""
    return (float32(rng, size * 2).view(np.uint32) >> 16).astype(np.uint16)


def zeros(rng, size):
    """Half of it pages of zeros, the other half small whole numbers in 64 bits."""
    numbers = rng.integers(0, 256, size // 8, np.int64)
    numbers.reshape(-1, 2, _RUN // 8)[:, 1] = 0
    return numbers


def random(rng, size):
    """Nothing to compress."""
    return rng.integers(0, 1 << 64, size // 8, np.uint64)


KINDS = {"text": text, "float32": float32, "bfloat16": bfloat16, "zeros": zeros, "random": random}


def fill(size, kinds, seed=1):
    """Return an array of `size` bytes (rounded up to whole blocks), its blocks of these kinds in turn."""
    rng = np.random.default_rng(seed)
    blocks = -(-size // _BLOCK)
    memory = np.empty(blocks * _BLOCK, np.uint8)
    for number in range(blocks):
        made = KINDS[kinds[number % len(kinds)]](rng, _BLOCK)
        memory[number * _BLOCK : (number + 1) * _BLOCK] = made.view(np.uint8)
    return memory
