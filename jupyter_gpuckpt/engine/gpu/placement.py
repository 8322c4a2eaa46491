"""On which GPUs memory goes that comes back: those where it was, or others of the same model that have room.

Pure: what is free is asked by the caller. The driver wants a pair for every GPU that it knows, also for one that a process may
not see (measured: one pair fewer is CUDA_ERROR_INVALID_VALUE, and the process stays as it was).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ...host.gpu import same_model
from ...model import Gpu

#: Stands for a GPU that the driver did not name.
UNKNOWN = ""


class Placement(NamedTuple):
    """Where memory goes. `gpu_map`: old to new UUID of every GPU, as Restore wants it; empty: everything where it was.

    `needed_bytes` and `free_bytes` are those of the GPU that lacks most, or has least to spare.
    """

    gpu_map: dict[str, str]
    needed_bytes: int
    free_bytes: int

    @property
    def shortage(self) -> str:
        """Why there is no room, as a sentence; empty if there is."""
        if self.needed_bytes <= self.free_bytes:
            return ""
        return f"{self.needed_bytes >> 20} MB of GPU memory are needed, {self.free_bytes >> 20} MB are free."


def place(
    needs: Mapping[str, int],
    known: Sequence[Gpu],
    here: Sequence[Gpu],
    free: Mapping[str, int],
    *,
    allowed: Collection[str] | None = None,
) -> Placement:
    """Choose a GPU for each of `needs` (bytes by UUID).

    `known`: the GPUs of the machine where the memory was taken; `here`: those of this one; `free`: their free bytes;
    `allowed`: those that may be chosen, None: all. What fits where it was stays there; else the one that needs most gets the
    emptiest GPU of its model.
    """
    models = {gpu.uuid: gpu for gpu in known}
    chosen: dict[str, str] = {}
    #: Free and needed bytes of each.
    rooms: list[tuple[int, int]] = []
    for uuid in sorted(needs, key=lambda uuid: -needs[uuid]):
        if uuid == UNKNOWN:
            rooms.append((max(free.values(), default=needs[uuid]), needs[uuid]))
            continue
        twins = [
            gpu.uuid
            for gpu in here
            if gpu.uuid not in chosen.values()
            and (allowed is None or gpu.uuid in allowed)
            and (uuid not in models or same_model(models[uuid], gpu))
        ]
        if not twins:
            rooms.append((0, needs[uuid]))
            continue
        stays = uuid in twins and needs[uuid] <= free.get(uuid, 0)
        chosen[uuid] = uuid if stays else max(twins, key=lambda twin: free.get(twin, 0))
        rooms.append((free.get(chosen[uuid], 0), needs[uuid]))
    gpu_map = _completed(chosen, known, here)
    if all(old == new for old, new in gpu_map.items()):
        gpu_map = {}
    room, needed = min(rooms, key=lambda pair: pair[0] - pair[1], default=(0, 0))
    return Placement(gpu_map, needed, room)


def reserved(
    free: Mapping[str, int], needs: Mapping[str, int], placement: Placement
) -> dict[str, int]:
    """What is free when `needs` are where `placement` says."""
    left = dict(free)
    for uuid, count in needs.items():
        target = placement.gpu_map.get(uuid, uuid)
        if uuid == UNKNOWN:
            target = max(left, key=lambda each: left[each], default=UNKNOWN)
        left[target] = left.get(target, 0) - count
    return left


def together(needs: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """What several processes need together."""
    total: dict[str, int] = {}
    for each in needs:
        for uuid, count in each.items():
            total[uuid] = total.get(uuid, 0) + count
    return total


def visible(devices: str | None, here: Sequence[Gpu]) -> set[str] | None:
    """The UUIDs of GPUs that a value of CUDA_VISIBLE_DEVICES allows; None: all.

    A comma separated list of numbers or of beginnings of UUIDs; the first that is neither ends it (CUDA C++ Programming
    Guide, "CUDA Environment Variables"). Numbers are taken as NVML's, which are CUDA's where all GPUs are of one model.
    """
    if not devices:
        return None
    found: set[str] = set()
    for word in (part.strip() for part in devices.split(",")):
        if word.isdecimal() and int(word) < len(here):
            found.add(here[int(word)].uuid)
            continue
        named = [gpu.uuid for gpu in here if word and gpu.uuid.startswith(word)]
        if len(named) != 1:
            break
        found.add(named[0])
    return found


def _completed(
    chosen: Mapping[str, str], known: Sequence[Gpu], here: Sequence[Gpu]
) -> dict[str, str]:
    """`chosen` with a partner for every other GPU that was known, its own self where that is still to be had."""
    pairs = dict(chosen)
    others = [gpu for gpu in known if gpu.uuid not in pairs]
    present = {gpu.uuid for gpu in here}
    for gpu in others:
        if gpu.uuid in present and gpu.uuid not in pairs.values():
            pairs[gpu.uuid] = gpu.uuid
    for gpu in others:
        if gpu.uuid not in pairs:
            free = [each for each in here if each.uuid not in pairs.values()]
            twin = next((each.uuid for each in free if same_model(gpu, each)), None)
            if twin is not None:
                pairs[gpu.uuid] = twin
    return pairs
