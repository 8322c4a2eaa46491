"""Changes that a bucket's owner, a thief or a broken disk may make to an object's bytes."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

#: How many come of one random source: hypothesis takes longer to give one than we to use it.
PER_SOURCE = 25


def mutations(chance: Random, data: bytes) -> Iterator[bytes]:
    """Yield some copies of `data`, each with a bit flipped, a part cut out, doubled or replaced, or another end; never `data` itself."""
    for _ in range(PER_SOURCE):
        start, length = chance.randrange(len(data)), chance.randint(1, 64)
        other = chance.randbytes(length)
        changed = chance.choice(
            [
                data[:start] + bytes([data[start] ^ 1 << chance.randrange(8)]) + data[start + 1 :],
                data[:start] + data[start + length :],
                data[:start] + data[start : start + length] + data[start:],
                data[:start] + other + data[start + length :],
                data[:start],
                data + other,
            ]
        )
        yield changed if changed != data else data + b"\0"
