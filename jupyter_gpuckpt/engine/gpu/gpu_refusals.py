"""Refusals of CUDA processes that the driver cannot checkpoint, or could checkpoint but not restore.

Managed memory is not among the reasons here: only the driver sees it; it refuses the Checkpoint itself, and Unlock is enough then.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from ...errors import FreezeFailed, KernelNotCheckpointable
from ...host import gpu, processes
from ..tree.tree import Tree
from .driver import cuda
from .driver.release import DEVICES
from .ferry.ferry import Ferry

#: The file of a CUDA process that shares memory (cuIpcGetMemHandle): the number is its pid in its own namespace.
_SHARED = re.compile(r"/cuda\.shm\.[0-9a-f]+\.([0-9a-f]+)\.[0-9a-f]+")

#: The libraries with JAX's GPU code.
_JAX = re.compile(r"/(xla_cuda_plugin|xla_extension|libjax_common)\b[^/]*\.so")


def refuse(tree: Tree, cuda_pids: Sequence[int], peers_off: set[int]) -> None:
    """Raise KernelNotCheckpointable for the first of `cuda_pids` whose GPU memory cannot be moved; nothing is changed.

    `peers_off`: the processes in which peer access between GPUs is off during the save; those whose ferry switches it off are added.
    Peer access makes Restore fail for good and cannot be seen from outside, so any other process that may have contexts on several
    GPUs is refused.
    """
    for pid in cuda_pids:
        used = gpu.used_by(pid)
        if gpu.shares_by_mps(pid):
            raise _refusal(
                pid,
                "uses the GPU through the Multi-Process Service (MPS), which the driver cannot checkpoint.",
                "Start the kernel without MPS (CUDA_MPS_PIPE_DIRECTORY) to be able to save it.",
            )
        if any(map(gpu.is_partitioned, used)) or (not used and _all_partitioned()):
            raise _refusal(
                pid,
                "uses a part of a GPU in MIG mode, which the driver cannot checkpoint.",
                "Use a whole GPU to be able to save it; only an administrator can switch MIG off.",
            )
        if refuse_opened(tree, pid):
            peers_off.add(pid)
    refuse_several(cuda_pids, peers_off)


def refuse_opened(tree: Tree, pid: int) -> bool:
    """Raise KernelNotCheckpointable if a process has opened memory of another one by CUDA IPC.

    Its ferry counts what is open. Without one, the files of the driver tell that something was opened once, be it an event only. Return
    whether its ferry switches peer access off for a save.
    """
    ferry = Ferry(tree, pid)
    sharing = ferry.sharing if ferry.is_there else None
    owner = sharing.owner if sharing else 0
    if sharing is None or (sharing.opened and not owner):
        owner = _imports_from(pid) or 0
    if owner or (sharing is not None and sharing.opened):
        origin = f", from process {owner} as the kernel sees it" if owner else ""
        raise _refusal(
            pid,
            f"has GPU memory of another process (CUDA IPC{origin}); the driver could not bring it back.",
            "End the process, or let it copy what it got (tensor.clone()) and drop the shared one, then try again.",
        )
    return sharing is not None


def refuse_several(cuda_pids: Sequence[int], peers_off: Collection[int]) -> None:
    """Raise KernelNotCheckpointable for the first of `cuda_pids` that has, or may have, contexts on several GPUs.

    A process that has only initialized CUDA has no context: PyTorch's compile workers do so, and see all GPUs.
    """
    several = len(gpu.gpus()) > 1
    for pid in cuda_pids:
        if not several or pid in peers_off:
            continue
        used = gpu.used_by(pid)
        if len(used) > 1:
            raise _refusal(
                pid,
                f"has CUDA contexts on {len(used)} GPUs; if peer access between them is on, the driver could not bring it back.",
                "In a notebook save when no cell runs: peer access is switched off meanwhile. Other processes of the kernel"
                " must use one GPU (CUDA_VISIBLE_DEVICES=0).",
            )
        if not used and not gpu.names_every_context():
            raise _refusal(
                pid,
                "has several GPUs open, and the driver does not report here on which of them it has contexts; if it has"
                " them on several, with peer access between them, the driver could not bring it back.",
                "In a notebook save when no cell runs: peer access is switched off meanwhile. For other processes of the"
                " kernel give the container one GPU, or the machine's PID namespace (--pid=host).",
            )


def refuse_unknown(pid: int) -> None:
    """Raise KernelNotCheckpointable if the driver does not report whether a process has a context.

    Such a process must not be treated as one without a context, whose GPU devices are closed.
    """
    if error := cuda.context_query_error(pid):
        raise _refusal(
            pid,
            f"has GPUs open, and the driver does not report whether it uses CUDA ({error}).",
            "End it, then try again.",
        )


def refuse_new_owner(pid: int) -> None:
    """Raise FreezeFailed for a process that has begun to use CUDA after the others were locked; its devices must not be closed."""
    if cuda.is_cuda_process(pid):
        raise FreezeFailed(
            "A process of the kernel began to use the GPU while the kernel was being saved.",
            hint="Try again.",
            details=f"process {pid} ({processes.name(pid)})",
        )
    refuse_unknown(pid)


def refuse_to_park(cuda_pids: Sequence[int]) -> None:
    """Raise KernelNotCheckpointable for the first of `cuda_pids` whose own threads read memory that is shared with the GPU.

    A parked process runs without that memory. A thread of JAX reads it every five seconds and dies of SIGSEGV.
    """
    for pid in cuda_pids:
        if any(_JAX.search(area.path) for area in processes.maps(pid)):
            raise _refusal(
                pid,
                "uses JAX, whose threads would crash while its GPU memory is away.",
                "Suspend it instead: that frees its GPU memory and its RAM.",
            )


def refuse_leftovers(pid: int) -> None:
    """Raise KernelNotCheckpointable for a process that still has GPU devices open or mapped after its Checkpoint.

    CRIU could not save such a process. The driver has closed CUDA's devices, so another library opened these.
    """
    left = {path for path in processes.descriptors(pid).values() if path.startswith(DEVICES)}
    left |= {area.path for area in processes.maps(pid) if area.path.startswith(DEVICES)}
    if left:
        raise _refusal(
            pid,
            f"has {', '.join(sorted(left))} open by another library than CUDA (hwloc does it when mpi4py is imported).",
            # Measured with Open MPI 4.1.6: with this setting no device stays open.
            "For hwloc, restart the kernel without HWLOC_COMPONENTS in its environment, or with -cuda,-nvml,-opencl,-gl in it.",
        )


def _imports_from(pid: int) -> int | None:
    """Return the pid, in the kernel's namespace, of the process whose GPU memory `pid` has imported; None: it imports none.

    Measured with driver 580: both Checkpoints succeed, and the importer's Restore fails for good. A process that has opened an event of
    another one, as PyTorch does with each tensor, maps a file of that one's in /dev/shm, whose name contains the pid. Memory that is
    opened without an event cannot be seen from outside.
    """
    try:
        text = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return None
    own = processes.nspid(pid)
    owners = {int(number, 16) for number in _SHARED.findall(text)}
    return min(owners - {own}, default=None)


def _all_partitioned() -> bool:
    present = gpu.gpus()
    return bool(present) and all(gpu.is_partitioned(each.uuid) for each in present)


def _refusal(pid: int, reason: str, hint: str) -> KernelNotCheckpointable:
    return KernelNotCheckpointable(
        f"A process of the kernel {reason}",
        hint=hint,
        details=f"process {pid} ({processes.name(pid)})",
    )
