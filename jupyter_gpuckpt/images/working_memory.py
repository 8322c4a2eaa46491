"""The memory budget of a save or resume, and the number of threads that it allows."""

from __future__ import annotations

from ..host import processes

#: The divisor of the free memory: an operation may use one `_PART`-th of it for its buffers.
_PART = 4


def fitting(
    threads: int, piece_bytes: int, *, min_bytes: int, beside_bytes: int, memory_bytes: int
) -> tuple[int, int]:
    """Return the number of threads and of bytes that each takes at a time, so that all together stay below `memory_bytes`.

    Each thread needs `beside_bytes` besides its piece. If memory is short, pieces are halved down to `min_bytes`, then the number
    of threads is reduced, down to one. `memory_bytes` 0: a quarter of the memory that is free now.
    """
    room = memory_bytes or processes.mem_available() // _PART
    while piece_bytes // 2 >= min_bytes and threads * (piece_bytes + beside_bytes) > room:
        piece_bytes //= 2
    return max(1, min(threads, room // (piece_bytes + beside_bytes))), piece_bytes
