"""The GPU side of a freeze and of a thaw: every process of the tree that has a CUDA context.

Covers: Lock, Checkpoint with the driver's staging memory as files of ours, Restore, Unlock, forked children released.
Does not cover: the driver's calls (`cuda.py`) and how the staging memory becomes a file (`gpu_staging.py`).
"""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from ..errors import (
    CheckpointError,
    FreezeFailed,
    GpuCkptError,
    KernelNotCheckpointable,
    ThawFailed,
    ToolMissing,
)
from ..host import gpu, processes
from ..model import SCRATCH, GpuProcess
from ..progress import Progress, Stage
from . import cuda, gpu_release, ptrace
from .gpu_staging import FileStaging, StagingFile
from .launch import pids
from .settings import EngineSettings
from .threads_held import ThreadsHeld
from .tree import Tree

logger = logging.getLogger(__name__)

DIRECTORY = f"{SCRATCH}/gpu"

#: How long memory that another program took from the GPU is waited for.
_PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.1
#: What is staged is a little more than what the GPU needs.
_TOLERANCE_BYTES = 256 << 20


class GpuProcesses:
    """The CUDA processes of one tree during one freeze. `take` frees the GPU; `give_back` undoes exactly what was done."""

    def __init__(self, tree: Tree, settings: EngineSettings, progress: Progress) -> None:
        self._tree, self._settings, self._progress = tree, settings, progress
        #: Host pids of those that are locked or checkpointed.
        self._locked: list[int] = []
        self._staged: dict[int, list[StagingFile]] = {}
        self._bytes: dict[int, int] = {}
        #: Those that were parked before, and stay so whatever becomes of this freeze.
        self._parked: set[int] = set()
        #: Where the memory of each came from, and how much of it.
        self._needs: dict[int, tuple[str, int]] = {}

    def take(self, *, parked: bool = False) -> None:
        """Lock and checkpoint every CUDA process; forked children lose the descriptors and mappings they cannot use.

        What was `parked` is taken as it is. Otherwise what an earlier save could not give back is given back first. On an
        error `give_back` undoes what was done. Without a GPU nothing happens.
        """
        if parked:
            self._take_parked()
        else:
            self.give_back_parked()
        with_gpu = [pid for pid in pids(self._tree) if cuda.holds_gpu(pid)]
        if not with_gpu:
            return
        usable, reason = cuda.available()
        if not usable:
            raise ToolMissing(
                f"The kernel uses a GPU, and GPU memory cannot be saved here: {reason}.",
                hint="pip install 'jupyter_gpuckpt[gpu]'; `jupyter gpuckpt doctor` says what else is missing.",
            )
        owners = [pid for pid in with_gpu if cuda.is_cuda_process(pid)]
        for pid in owners:
            _refuse_several_gpus(pid)
        with self._progress.stage(Stage.GPU_LOCK):
            for pid in owners:
                cuda.lock(pid, self._settings.gpu_lock_seconds)
                self._locked.append(pid)
        with self._progress.stage(Stage.GPU_CHECKPOINT):
            for pid in owners:
                self._checkpoint(pid)
        with self._progress.stage(Stage.GPU_RELEASE):
            for pid in pids(self._tree):
                if pid not in owners and cuda.holds_gpu(pid):
                    gpu_release.release(pid)

    def _checkpoint(self, pid: int) -> None:
        before, free = processes.memory(pid).private_bytes, gpu.free_bytes()
        with FileStaging(self._tree, pid, _driver_thread(pid, FreezeFailed), DIRECTORY) as staging:
            cuda.checkpoint(pid)
        self._staged[pid] = list(staging.files)
        size = sum(file.length for file in staging.files)
        self._bytes[pid] = size or max(0, processes.memory(pid).private_bytes - before)
        freed = {uuid: now - free.get(uuid, now) for uuid, now in gpu.free_bytes().items()}
        if freed:
            uuid = max(freed, key=lambda uuid: freed[uuid])
            self._needs[pid] = uuid, min(freed[uuid], self._bytes[pid])

    def give_back(self, *, later: bool = False) -> None:
        """Restore and unlock whatever was taken. Needs the tasks running: the driver works in a thread of the target.

        One process that cannot be brought back does not keep the others from it; the first such error is raised at the end.
        Where other programs took the GPU's memory meanwhile, nothing is tried, because the driver would lose the process: it
        stays checkpointed, its data in RAM, for the next call. With `later` nothing is waited for and nothing raised: there
        must be a next call.
        """
        failed: GpuCkptError | None = None
        parked = []
        while self._locked:
            pid = self._locked.pop()
            uuid, needed = self._needs.get(pid, ("", 0))
            try:
                with self._progress.stage(Stage.GPU_RESTORE, undo=True):
                    if shortage := _shortage(needed, uuid, 0.0 if later else _PATIENCE_SECONDS):
                        parked.append(pid)
                        failed = failed or _no_room(pid, shortage)
                    else:
                        cuda.bring_back(pid)
            except GpuCkptError as error:
                logger.exception("GPU memory of process %d could not be brought back", pid)
                failed = failed or error
                if later:
                    parked.append(pid)
        self._locked = parked
        if failed is not None and not later:
            raise failed

    def _checkpointed(self) -> list[int]:
        return [
            pid
            for pid in pids(self._tree)
            if cuda.may_be_parked(pid) and cuda.state(pid) is cuda.ProcessState.CHECKPOINTED
        ]

    def _take_parked(self) -> None:
        for pid in self._checkpointed():
            paths = {area.path for area in processes.maps(pid) if DIRECTORY in area.path}
            files = [StagingFile(path, self._tree.inside(path).stat().st_size) for path in paths]
            self._staged[pid] = sorted(files)
            self._bytes[pid] = sum(file.length for file in files)
            self._parked.add(pid)

    def give_back_parked(self) -> None:
        """Give back what is checkpointed though no freeze is under way; raises as `give_back`."""
        for pid in self._checkpointed():
            self._needs[pid] = "", _staged_bytes(pid)
            self._locked.append(pid)
        self.give_back()

    def parked_bytes(self) -> int:
        """The GPU memory that the largest parked process needs to be given back."""
        return max(map(_staged_bytes, self._checkpointed()), default=0)

    def drop_files(self) -> None:
        """Remove the staging files; the driver has unmapped them by then."""
        for pid, files in self._staged.items():
            for file in files if pid not in self._parked else ():
                with suppress(OSError):
                    self._tree.inside(file.path).unlink(missing_ok=True)

    def records(self) -> list[GpuProcess]:
        """What the manifest says of each process."""
        return [
            GpuProcess(processes.nspid(pid) or 0, [file.path for file in files], self._bytes[pid])
            for pid, files in self._staged.items()
        ]

    def files(self) -> dict[str, Path]:
        """Stream name -> where the staging file can be read from outside."""
        return {
            f"gpu{file.path}": self._tree.inside(file.path)
            for files in self._staged.values()
            for file in files
        }


def _staged_bytes(pid: int) -> int:
    """What a parked process needs on the GPU."""
    staged = (area.end - area.start for area in processes.maps(pid) if DIRECTORY in area.path)
    return max(0, sum(staged) - _TOLERANCE_BYTES)


def needed_bytes(records: list[GpuProcess]) -> int:
    """The GPU memory that the largest of these processes needs."""
    largest = max((record.memory_bytes for record in records), default=0)
    return max(0, largest - _TOLERANCE_BYTES)


def _shortage(needed: int, uuid: str, patience: float) -> str:
    """Why `needed` bytes do not fit on the GPU `uuid` (empty: on any), looked at for `patience` seconds; empty if they do."""
    deadline = time.monotonic() + patience
    while True:
        free = gpu.free_bytes()
        room = free.get(uuid, max(free.values(), default=needed))
        if room >= needed:
            return ""
        if time.monotonic() >= deadline:
            return f"{needed >> 20} MB of GPU memory are needed, {room >> 20} MB are free."
        time.sleep(_LOOK_SECONDS)


def shortage(records: list[GpuProcess], patience: float = 0.0) -> str:
    """Why there is no room on the GPUs for the largest of these processes; empty if there is."""
    return _shortage(needed_bytes(records), "", patience)


def _no_room(pid: int, shortage: str) -> FreezeFailed:
    return FreezeFailed(
        f"Another program took the GPU memory of the kernel while it was being saved. {shortage}",
        hint="The kernel's data are safe, but its GPU work waits. Free GPU memory (nvidia-smi shows who holds it), then save"
        " again: that gives it back first.",
        details=f"process {pid} ({processes.name(pid)})",
    )


def _refuse_several_gpus(pid: int) -> None:
    """Refuse what the driver takes and never gives back: a process with peer access on between its GPUs.

    Restore then fails for good. Peer access cannot be seen from outside, so contexts on several GPUs are refused.
    """
    count = gpu.devices_of(pid)
    if count == 1 or len(gpu.gpus()) < 2:
        return
    seen = f"on {count} GPUs" if count else "on GPUs that the driver does not name"
    raise KernelNotCheckpointable(
        f"A process of the kernel has CUDA contexts {seen}; if peer access between them is on, the driver could not bring it back.",
        hint="Let the kernel use one GPU (CUDA_VISIBLE_DEVICES=0) to be able to save it.",
        details=f"process {pid} ({processes.name(pid)})",
    )


def _driver_thread(pid: int, error: type[CheckpointError]) -> int:
    """The thread in which the driver works; without it every thread would be held and the driver wait for ever."""
    thread = cuda.restore_thread(pid)
    if thread is None:
        raise error(
            "The CUDA driver does not know its own thread in the kernel.",
            hint="Update the NVIDIA driver; `jupyter gpuckpt doctor` names its version.",
            details=f"cuCheckpointProcessGetRestoreThreadId({pid})",
        )
    return thread


def restore(
    tree: Tree, records: list[GpuProcess], gpu_map: dict[str, str], progress: Progress
) -> None:
    """GPU memory back into a restored tree whose tasks are all stopped (state T).

    Every thread but the driver's own is held while the driver works, so user code has not run one instruction if this
    fails. On return the CUDA processes' tasks run.
    """
    if not records:
        return
    if missing := shortage(records, _PATIENCE_SECONDS):
        raise ThawFailed(
            f"There is no room on the GPU. {missing}",
            hint="Free GPU memory (nvidia-smi shows who holds it) and resume again. The snapshot is untouched.",
        )
    by_nspid = {processes.nspid(pid): pid for pid in pids(tree)}
    with (
        ExitStack() as held,
        progress.stage(Stage.GPU_RESTORE, sum(r.memory_bytes for r in records)),
    ):
        for record in records:
            pid = by_nspid[record.pid]
            # If we die now the process does, too: nothing of it may run on as long as its GPU memory is not back.
            thread = _driver_thread(pid, ThawFailed)
            held.enter_context(ThreadsHeld(pid, thread, options=ptrace.EXITKILL))
            os.kill(pid, signal.SIGCONT)
            cuda.restore(pid, gpu_map)
            cuda.unlock(pid)
            progress.advance(record.memory_bytes)
    for record in records:
        for path in record.staging:
            tree.inside(path).unlink(missing_ok=True)
