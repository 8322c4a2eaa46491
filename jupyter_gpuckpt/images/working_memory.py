"""How much memory a save or resume may work with, and what that means for its threads."""

from __future__ import annotations

from ..host import processes

#: Of the memory that is free when an operation begins to move bytes, one part in so many may be used for that.
_PART = 4


def fitting(
    threads: int, piece_bytes: int, *, least_bytes: int, beside_bytes: int, memory_bytes: int
) -> tuple[int, int]:
    """How many threads, and how many bytes each takes at a time, so that all together stay below `memory_bytes`.

    Each thread needs `beside_bytes` besides its piece. Where room is short pieces are halved, down to `least_bytes`, and then
    there are fewer threads, but one there always is. `memory_bytes` 0: a quarter of what is free now.
    """
    room = memory_bytes or processes.mem_available() // _PART
    while piece_bytes // 2 >= least_bytes and threads * (piece_bytes + beside_bytes) > room:
        piece_bytes //= 2
    return max(1, min(threads, room // (piece_bytes + beside_bytes))), piece_bytes
