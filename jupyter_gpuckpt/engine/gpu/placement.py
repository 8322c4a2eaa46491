"""The choice of GPUs to which memory is restored: those where it was, or others of the same model that have room.

These are pure functions: the caller determines how much memory is free. The driver's Restore takes pairs of an old and a new GPU, and
needs one for every GPU that it knows, even for one that the process may not see (measured: with one pair fewer it fails with
CUDA_ERROR_INVALID_VALUE, and the process stays as it was).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ...host.gpu import same_model
from ...wire.manifest_records import Gpu

#: The placeholder for a GPU that the driver did not name.
UNKNOWN = ""


class Placement(NamedTuple):
    """A choice of GPUs. `gpu_map`: old to new UUID of every GPU, as Restore wants it; empty: the same GPUs.

    `needed_bytes` and `free_bytes` are those of the GPU with the largest shortage, or else with the least memory to spare.
    """

    gpu_map: dict[str, str]
    needed_bytes: int
    free_bytes: int

    @property
    def shortage(self) -> str:
        """A sentence with the memory that is missing; empty if there is enough."""
        if self.needed_bytes <= self.free_bytes:
            return ""
        return f"{self.needed_bytes >> 20} MB of GPU memory are needed, {self.free_bytes >> 20} MB are free."


def place(
    needs: Mapping[str, int],
    known: Sequence[Gpu],
    local_gpus: Sequence[Gpu],
    free: Mapping[str, int],
    *,
    allowed: Collection[str] | None = None,
    stays: bool = False,
) -> Placement:
    """Choose a GPU for each of `needs` (bytes by UUID).

    `known`: the GPUs of the machine where the memory was saved; `local_gpus`: this machine's GPUs; `free`: their free bytes;
    `allowed`: UUIDs that may be chosen, None: all. Memory that fits where it was stays there, and with `stays` all of it does; else the
    largest need gets the GPU of its model with the most free memory.
    """
    models = {gpu.uuid: gpu for gpu in known}
    chosen: dict[str, str] = {}
    #: Free and needed bytes of each chosen GPU.
    rooms: list[tuple[int, int]] = []
    for uuid in sorted(needs, key=lambda uuid: -needs[uuid]):
        if uuid == UNKNOWN:
            rooms.append((max(free.values(), default=needs[uuid]), needs[uuid]))
            continue
        twins = [
            gpu.uuid
            for gpu in local_gpus
            if gpu.uuid not in chosen.values()
            and (allowed is None or gpu.uuid in allowed)
            and (gpu.uuid == uuid or not stays)
            and (uuid not in models or same_model(models[uuid], gpu))
        ]
        if not twins:
            rooms.append((0, needs[uuid]))
            continue
        fits = uuid in twins and needs[uuid] <= free.get(uuid, 0)
        chosen[uuid] = uuid if fits else max(twins, key=lambda twin: free.get(twin, 0))
        rooms.append((free.get(chosen[uuid], 0), needs[uuid]))
    gpu_map = _completed(chosen, known, local_gpus)
    if all(old == new for old, new in gpu_map.items()):
        gpu_map = {}
    room, needed = min(rooms, key=lambda pair: pair[0] - pair[1], default=(0, 0))
    return Placement(gpu_map, needed, room)


def reserved(
    free: Mapping[str, int], needs: Mapping[str, int], placement: Placement
) -> dict[str, int]:
    """Return the bytes that remain free on each GPU after `needs` are placed as `placement` says."""
    left = dict(free)
    for uuid, count in needs.items():
        target = placement.gpu_map.get(uuid, uuid)
        if uuid == UNKNOWN:
            target = max(left, key=lambda each: left[each], default=UNKNOWN)
        left[target] = left.get(target, 0) - count
    return left


def together(needs: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of the needs of several processes, by GPU."""
    total: dict[str, int] = {}
    for each in needs:
        for uuid, count in each.items():
            total[uuid] = total.get(uuid, 0) + count
    return total


def visible(devices: str | None, local_gpus: Sequence[Gpu]) -> set[str] | None:
    """Return the UUIDs of GPUs that a value of CUDA_VISIBLE_DEVICES allows; None: all.

    The value is a comma separated list of numbers or of prefixes of UUIDs; the first invalid entry ends it (CUDA C++ Programming
    Guide, "CUDA Environment Variables"). Numbers are taken as NVML's, which equal CUDA's where all GPUs are of one model.
    """
    if not devices:
        return None
    found: set[str] = set()
    for name in (part.strip() for part in devices.split(",")):
        if name.isdecimal() and int(name) < len(local_gpus):
            found.add(local_gpus[int(name)].uuid)
            continue
        named = [gpu.uuid for gpu in local_gpus if name and gpu.uuid.startswith(name)]
        if len(named) != 1:
            break
        found.add(named[0])
    return found


def _completed(
    chosen: Mapping[str, str], known: Sequence[Gpu], local_gpus: Sequence[Gpu]
) -> dict[str, str]:
    """Return `chosen` with a pair for every other known GPU: itself if it is still available, else a free GPU of its model."""
    pairs = dict(chosen)
    others = [gpu for gpu in known if gpu.uuid not in pairs]
    present = {gpu.uuid for gpu in local_gpus}
    for gpu in others:
        if gpu.uuid in present and gpu.uuid not in pairs.values():
            pairs[gpu.uuid] = gpu.uuid
    for gpu in others:
        if gpu.uuid not in pairs:
            free = [each for each in local_gpus if each.uuid not in pairs.values()]
            twin = next((each.uuid for each in free if same_model(gpu, each)), None)
            if twin is not None:
                pairs[gpu.uuid] = twin
    return pairs
