"""The room on the GPU for memory that init holds and that must be given back to its process.

Memory that was given back is on the GPU twice until init frees its own.
"""

from __future__ import annotations

from collections.abc import Collection

from ...host import gpu, processes
from .lane_orders import BATCH
from .placement import visible

#: What stays free on the GPU while memory is given back.
_MARGIN_BYTES = 1 << 30
#: The bytes of the largest part: MAX_PART_BYTES in lane.h.
_PART_BYTES = 1 << 30
#: The room with which memory that init holds can be given back, part by part: two parts, and what other programs may take meanwhile.
_BY_PARTS_BYTES = 3 << 30


def free_room(pid: int, used: Collection[str]) -> int:
    """Return the least free memory of these GPUs; of all that the process may use if it is not known which it uses, as in containers."""
    free = gpu.free_bytes()
    if not used:
        used = visible(processes.environment(pid).get("CUDA_VISIBLE_DEVICES"), gpu.gpus()) or free
    return min((free.get(uuid, 0) for uuid in used), default=0)


def fits_twice(length: int, room: int) -> bool:
    """Return whether the GPU has room for a second copy of `length` bytes. `room`: its free bytes while they are there once."""
    return room > length + _MARGIN_BYTES


def fits_by_parts(room: int) -> bool:
    """Return whether the GPU has room to give memory back part by part. `room`: its free bytes while the memory is there once."""
    return room > _BY_PARTS_BYTES


def parts_at_once(pid: int) -> int:
    """Return how many parts can be given back at once to a process, whose parts before them init has freed; at least one."""
    room = free_room(pid, gpu.used_by(pid)) - _MARGIN_BYTES
    return max(1, min(BATCH, room // _PART_BYTES))
