"""The room on the GPUs for memory that init holds and that must be given back to its process, and which GPU has how much of it.

Memory that was given back is on the GPU twice until init frees its own. A process numbers its GPUs itself (CUDA_VISIBLE_DEVICES). The
driver reports, by UUID, how many bytes a process has on each GPU of this machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ....host import gpu, processes
from ..placement import UNKNOWN, visible
from .ferry_orders import BATCH, Allocation

#: What stays free on the GPU while memory is given back.
_MARGIN_BYTES = 1 << 30
#: The bytes of the largest part: MAX_PART_BYTES in ferry.h.
PART_BYTES = 1 << 30
#: The room with which memory that init holds can be given back, part by part: two parts, and what other programs may take meanwhile.
_BY_PARTS_BYTES = 3 << 30


def free_room(pid: int, used: Collection[str]) -> int:
    """Return the least free memory of these GPUs; of all that the process may use if it is not known which it uses, as in containers."""
    free = gpu.free_bytes()
    if not used:
        used = visible(processes.environment(pid).get("CUDA_VISIBLE_DEVICES"), gpu.gpus()) or free
    return min((free.get(uuid, 0) for uuid in used), default=0)


def located(
    devices: Mapping[int, str], allocations: Sequence[Allocation], used: Mapping[str, int]
) -> dict[int, str]:
    """Return the UUIDs of the process's GPUs by its own numbers; empty if it is not certain on which of them its memory is.

    `devices`: what the process reports. `used`: its bytes on each GPU as the driver reports them; empty if it does not.
    """
    numbers = {one.device for one in allocations}
    if len(used) == 1:
        return dict.fromkeys(numbers, next(iter(used)))
    by_number = Counter[int]()
    for one in allocations:
        by_number[one.device] += one.bytes
    # Where the driver reports no process, only that the GPU is there can be checked.
    present = used or dict.fromkeys(gpu.free_bytes(), max(by_number.values(), default=0))
    if any(present.get(devices.get(number, UNKNOWN), -1) < by_number[number] for number in numbers):
        return {}
    return dict(devices)


def by_gpu(allocations: Sequence[Allocation], where: Mapping[int, str]) -> dict[str, int]:
    """Return the bytes of the memory on each GPU; where that is not certain, all of them under UNKNOWN."""
    found = Counter[str]()
    for one in allocations:
        found[where.get(one.device, UNKNOWN)] += one.bytes
    return dict(found)


def without(used: Mapping[str, int], memory: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes that a process has on each GPU in addition to this memory; an upper bound where it is not certain."""
    if memory.keys() <= used.keys():
        return {uuid: max(0, size - memory.get(uuid, 0)) for uuid, size in used.items()}
    rest = max(0, sum(used.values()) - sum(memory.values()))
    return {uuid: min(size, rest) for uuid, size in used.items()}


def rooms(pid: int, memory: Collection[str], used: Collection[str]) -> dict[str, int]:
    """Return the free bytes of GPUs with memory of a process; UNKNOWN: the least of those that may have it."""
    free = gpu.free_bytes()
    return {uuid: free[uuid] if uuid in free else free_room(pid, used) for uuid in memory}


def fits_twice(length: int, room: int) -> bool:
    """Return whether the GPU has room for a second copy of `length` bytes. `room`: its free bytes while they are there once."""
    return room > length + _MARGIN_BYTES


def fits_by_parts(room: int) -> bool:
    """Return whether the GPU has room to give memory back part by part. `room`: its free bytes while the memory is there once."""
    return room > _BY_PARTS_BYTES


def parts_at_once(pid: int) -> int:
    """Return how many parts can be given back at once to a process, whose parts before them init has freed; at least one."""
    room = free_room(pid, gpu.used_by(pid)) - _MARGIN_BYTES
    return max(1, min(BATCH, room // PART_BYTES))
