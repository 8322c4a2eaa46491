"""Parking and unparking: the GPU memory of a running tree moves to RAM, which frees the GPU, and back.

CUDA calls of a parked process wait. A parked tree can be frozen as it is (`SaveOptions.parked`).
"""

from __future__ import annotations

from ..errors import FreezeFailed, KernelLost, KernelNotCheckpointable
from ..host import processes
from ..wire.progress import Progress, Stage
from .capture import clear
from .gpu import gpu_refusals
from .gpu.driver import cuda
from .gpu.gpu_processes import DIRECTORY, GpuProcesses
from .gpu.placement import Placement
from .settings import EngineSettings
from .tree.launch import alive, pids
from .tree.tree import Tree

_MB = 1 << 20


def park(
    tree: Tree,
    settings: EngineSettings,
    *,
    gpu_bytes: int,
    peer_access_off: bool,
    keep_contexts: bool = False,
    progress: Progress,
) -> int:
    """Move the GPU memory of every CUDA process into RAM; return how many bytes were moved.

    `gpu_bytes`: how much GPU memory the tree uses, by NVML. `peer_access_off`: see `engine/gpu/gpu_refusals.py`. `keep_contexts`: leave
    contexts on the GPU, where hardly anything else is left there: the driver takes a third of a second to take them, and as much to bring
    them back. Raises KernelNotCheckpointable if no GPU is in use or its memory could not be restored, FreezeFailed when RAM is short or
    the driver refuses. After an error the kernel runs on as before.
    """
    if not alive(tree):
        raise KernelLost("The kernel's process is gone.")
    _require_ram(tree, settings, gpu_bytes, progress)
    gpu_refusals.refuse_to_park(list(filter(cuda.is_cuda_process, pids(tree))))
    gpu = GpuProcesses(tree, progress)
    try:
        gpu.take(
            settings.gpu_lock_seconds,
            peer_access_off=peer_access_off,
            keep_contexts=keep_contexts,
        )
        if not gpu.records():
            raise KernelNotCheckpointable(
                "The kernel uses no GPU.",
                hint="There is nothing to park: suspend it to free its memory.",
            )
        gpu.threads.release_all()
    except BaseException:
        gpu.give_back()
        gpu.drop_files()
        raise
    return sum(record.memory_bytes for record in gpu.records())


def park_contexts(
    tree: Tree, settings: EngineSettings, *, gpu_bytes: int, progress: Progress
) -> int:
    """Move the contexts of a parked tree into RAM, too, if they were left on the GPU; return how many bytes were moved.

    `gpu_bytes`: as in `park`. Raises what `park` raises. After an error the kernel is parked as before.
    """
    if not alive(tree):
        raise KernelLost("The kernel's process is gone.")
    _require_ram(tree, settings, gpu_bytes, progress)
    gpu = GpuProcesses(tree, progress)
    gpu.take_contexts(settings.gpu_lock_seconds)
    gpu.threads.release_all()
    return gpu.stored_bytes


def _require_ram(tree: Tree, settings: EngineSettings, gpu_bytes: int, progress: Progress) -> None:
    with progress.stage(Stage.PREFLIGHT):
        needed = gpu_bytes + settings.headroom_bytes
        available = processes.mem_available(tree.kernel_pid)
        if needed > available:
            raise FreezeFailed(
                f"There is not enough memory to park the kernel: {needed // _MB} MB are needed, {available // _MB} MB are free.",
                hint="Suspend it instead: that frees both.",
                details=f"needed {needed}, available {available} bytes",
            )


def room(tree: Tree) -> Placement:
    """Return the placement of a parked tree's GPU memory: the GPUs, and the bytes needed and free there."""
    return GpuProcesses(tree, Progress()).parked_room()


def unpark(tree: Tree, progress: Progress) -> None:
    """Move the memory back to the GPU and let CUDA calls go on.

    Raises FreezeFailed when the GPU has no room; the kernel stays parked then.
    """
    if not alive(tree):
        raise KernelLost("The kernel's process is gone.")
    gpu = GpuProcesses(tree, progress)
    gpu.give_back_parked()
    if not gpu.ferries.waiting:
        clear(tree.inside(DIRECTORY))
