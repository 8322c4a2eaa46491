"""The GPU side of a freeze and of a thaw: every process of the tree that has a CUDA context.

Covers: Lock, Checkpoint with the driver's staging memory as files of ours, Restore, Unlock, forked children released.
Does not cover: the driver's calls (`cuda.py`) and how the staging memory becomes a file (`gpu_staging.py`).
"""

from __future__ import annotations

import logging
import os
import signal
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
from ..progress import Progress
from . import cuda, gpu_release
from .gpu_staging import FileStaging, StagingFile
from .launch import pids
from .settings import EngineSettings
from .threads_held import ThreadsHeld
from .tree import Tree

logger = logging.getLogger(__name__)

DIRECTORY = f"{SCRATCH}/gpu"


class GpuProcesses:
    """The CUDA processes of one tree during one freeze. `take` frees the GPU; `give_back` undoes exactly what was done."""

    def __init__(self, tree: Tree, settings: EngineSettings, progress: Progress) -> None:
        self._tree, self._settings, self._progress = tree, settings, progress
        #: Host pids of those that are locked or checkpointed.
        self._locked: list[int] = []
        self._staged: dict[int, list[StagingFile]] = {}
        self._bytes: dict[int, int] = {}

    def take(self) -> None:
        """Lock and checkpoint every CUDA process; forked children lose the descriptors and mappings they cannot use.

        On an error `give_back` undoes what was done. Without a GPU nothing happens.
        """
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
        with self._progress.stage("gpu lock"):
            for pid in owners:
                cuda.lock(pid, self._settings.gpu_lock_seconds)
                self._locked.append(pid)
        with self._progress.stage("gpu checkpoint"):
            for pid in owners:
                self._checkpoint(pid)
        with self._progress.stage("gpu release"):
            for pid in pids(self._tree):
                if pid not in owners and cuda.holds_gpu(pid):
                    gpu_release.release(pid)

    def _checkpoint(self, pid: int) -> None:
        before = processes.memory(pid).private_bytes
        thread, threads = _driver_thread(pid, FreezeFailed), self._settings.threads
        with FileStaging(self._tree, pid, thread, DIRECTORY, threads=threads) as staging:
            cuda.checkpoint(pid)
        self._staged[pid] = list(staging.files)
        size = sum(file.length for file in staging.files)
        self._bytes[pid] = size or max(0, processes.memory(pid).private_bytes - before)

    def give_back(self) -> None:
        """Restore and unlock whatever was taken. Needs the tasks running: the driver works in a thread of the target.

        One process that cannot be brought back does not keep the others from it; the first such error is raised at the end.
        """
        failed: GpuCkptError | None = None
        while self._locked:
            pid = self._locked.pop()
            try:
                with self._progress.stage("gpu restore", undo=True):
                    cuda.bring_back(pid)
            except GpuCkptError as error:
                logger.exception("GPU memory of process %d could not be brought back", pid)
                failed = failed or error
        if failed is not None:
            raise failed

    def drop_files(self) -> None:
        """Remove the staging files; the driver has unmapped them by then."""
        for files in self._staged.values():
            for file in files:
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
    by_nspid = {processes.nspid(pid): pid for pid in pids(tree)}
    with ExitStack() as held, progress.stage("gpu restore", sum(r.memory_bytes for r in records)):
        for record in records:
            pid = by_nspid[record.pid]
            held.enter_context(ThreadsHeld(pid, _driver_thread(pid, ThawFailed)))
            os.kill(pid, signal.SIGCONT)
            cuda.restore(pid, gpu_map)
            cuda.unlock(pid)
            progress.advance(record.memory_bytes)
    for record in records:
        for path in record.staging:
            tree.inside(path).unlink(missing_ok=True)
