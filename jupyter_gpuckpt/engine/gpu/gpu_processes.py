"""The GPU part of a freeze: Checkpoint and Restore of every process of the tree that has a CUDA context.

Covers: Lock, Checkpoint with the driver's staging memory in files, Restore, Unlock, releasing forked children.
Does not cover: the driver's calls (`cuda.py`), how the staging memory becomes a file (`gpu_staging.py`), refusals
(`gpu_refusals.py`), the choice of GPUs (`placement.py`), why the user's threads are held meanwhile (`tree/user_threads.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from ...errors import CheckpointError, FreezeFailed, GpuCkptError, ToolMissing
from ...host import gpu, processes
from ...wire import decoding
from ...wire.manifest_records import GpuProcess
from ...wire.progress import Progress, Stage
from ..tree.launch import pids
from ..tree.tree import Tree
from ..tree.user_threads import UserThreads
from . import gpu_refusals
from .driver import cuda, release
from .driver.gpu_staging import FileStaging, StagingFile
from .ferry.ferries import Ferries, Until
from .ferry.ferry import FILES, Ferry
from .ferry.ferry_room import without
from .placement import UNKNOWN, Placement, place, reserved, visible
from .restore import (
    PATIENCE_SECONDS,
    TOLERANCE_BYTES,
    driver_thread,
    side_by_side,
    when_there_is_room,
)

logger = logging.getLogger(__name__)

DIRECTORY = FILES
#: The file with the bytes that each process whose memory was taken needs on each GPU, by its pid in the kernel's namespace.
_NEEDS = "needs.json"
#: The most bytes that a process may keep on the GPUs where a park leaves its context there: a context has half a gigabyte.
_MAX_KEPT_BYTES = 1 << 30


class _TakenFromGpu(msgspec.Struct, frozen=True):
    """The content of `needs.json`: by process, bytes by GPU UUID."""

    needs: dict[int, dict[str, int]] = {}


class GpuProcesses:
    """The CUDA processes of one tree during one freeze. `take` frees the GPU; `give_back` undoes exactly what `take` did.

    `ferries`: the ferries of the tree, if there is something to say of their copying.
    """

    def __init__(self, tree: Tree, progress: Progress, ferries: Ferries | None = None) -> None:
        self._tree, self._progress = tree, progress
        #: Host pids of processes that are locked or checkpointed.
        self._locked: list[int] = []
        self._staged: dict[int, list[StagingFile]] = {}
        self._bytes: dict[int, int] = {}
        #: Processes that were parked before this freeze, and stay parked after it.
        self._parked: set[int] = set()
        #: Processes whose ferries' memory is in RAM, while their contexts are still on the GPU.
        self._with_context: set[int] = set()
        #: Pids in the namespaces of the tree, noted by the first call of `records`.
        self._nspids: dict[int, int] = {}
        #: Bytes that each process needs, by GPU.
        self._needs: dict[int, dict[str, int]] = {}
        self.ferries = ferries or Ferries(tree)
        #: The user's threads, held from before the first Checkpoint. The caller of `take` stops or releases them.
        self.threads = UserThreads()

    def take(
        self,
        lock_seconds: float,
        *,
        until: Until = Until.UNPARKED,
        parked: bool = False,
        peer_access_off: bool = False,
        keep_contexts: bool = False,
    ) -> None:
        """Lock and checkpoint every CUDA process, and take from forked children the descriptors and mappings they cannot use.

        `lock_seconds`: how long to wait for running GPU work of each process. A `parked` tree stays parked; otherwise memory that
        an earlier save could not give back is given back first. `until`: how long memory will be away; in a save
        `copy_handed_over` must follow. `peer_access_off`: the agent in the kernel's own process has switched it off. `keep_contexts`:
        take only the memory of ferries, where nearly all of it is theirs, and checkpoint nothing. Without a GPU nothing happens.
        Raises KernelNotCheckpointable, before anything is done, for memory that could not be restored. After an error
        `give_back` undoes what was done.
        """
        if parked:
            self.take_contexts(lock_seconds)
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
                hint="pip install 'jupyter-gpuckpt[gpu]'; `jupyter gpuckpt doctor` lists what else is missing.",
            )
        owners = [pid for pid in with_gpu if cuda.is_cuda_process(pid)]
        peers_off = {self._tree.kernel_pid} if peer_access_off else set[int]()
        gpu_refusals.refuse(self._tree, owners, peers_off)
        for pid in set(with_gpu) - set(owners):
            gpu_refusals.refuse_unknown(pid)
        with self._progress.stage(Stage.GPU_LOCK):
            for pid in owners:
                self.ferries.close_gate(pid, lock_seconds)
                gpu_refusals.refuse_opened(self._tree, pid)  # now it can open no more
                cuda.lock(pid, lock_seconds)
                self._locked.append(pid)
        # This is checked again: a process may have begun to use a second GPU before the Lock. From now on none can.
        gpu_refusals.refuse_several(owners, peers_off)
        with self._progress.stage(Stage.GPU_CHECKPOINT):
            self._needs |= {pid: gpu.used_by(pid) for pid in owners}
            for pid in owners:
                self.ferries.empty(pid, lock_seconds, self._needs[pid], until)
            self._note_needs()  # without the memory that init holds
            if keep_contexts and self._leaves_only_contexts(owners):
                self._unlock_all()
                return
            drivers = {pid: driver_thread(pid, FreezeFailed) for pid in owners}
            for pid, thread in drivers.items():
                self.threads.hold(pid, thread)
            # Two processes in parallel take half the time, even on one GPU.
            side_by_side(lambda pid: self._checkpoint(pid, drivers[pid]), owners, held=self.threads)
            self._note_needs()
        with self._progress.stage(Stage.GPU_RELEASE):
            holders = [pid for pid in pids(self._tree) if pid not in owners and cuda.holds_gpu(pid)]
            for pid in holders:
                # The copying may have taken minutes, in which a process can have begun to use CUDA.
                gpu_refusals.refuse_new_owner(pid)
            for pid in holders:
                release.release(pid)
        for pid in owners:
            gpu_refusals.refuse_leftovers(pid)

    def _leaves_only_contexts(self, owners: Iterable[int]) -> bool:
        """Return whether these processes have hardly more than their contexts on the GPUs, and their threads wait at a gate.

        Where the driver does not report how much they have, it is assumed to be more.
        """
        return all(
            pid in self.ferries.waiting
            and 0
            < sum(self._needs[pid].values()) - self.ferries.taken_bytes(pid)
            <= _MAX_KEPT_BYTES
            for pid in owners
        ) and any(self.ferries.taken_bytes(pid) for pid in owners)

    def _unlock_all(self) -> None:
        while self._locked:
            cuda.unlock(self._locked[-1])
            self._bytes[self._locked.pop()] = 0  # of the driver's

    def take_contexts(self, lock_seconds: float) -> None:
        """Checkpoint the processes whose contexts a park has left on the GPU.

        The caller releases the threads. Raises what `take` raises; the processes are parked as before then.
        """
        if not (found := self._find_with_context()):
            return
        self._with_context = found
        try:
            with self._progress.stage(Stage.GPU_LOCK):
                for pid in found:
                    cuda.lock(pid, lock_seconds)
                    self._locked.append(pid)
                    self._needs[pid] = gpu.used_by(pid)
            with self._progress.stage(Stage.GPU_CHECKPOINT):
                drivers = {pid: driver_thread(pid, FreezeFailed) for pid in self._locked}
                for pid, thread in drivers.items():
                    self.threads.hold(pid, thread)
                side_by_side(
                    lambda pid: self._checkpoint(pid, drivers[pid]), drivers, held=self.threads
                )
            for pid in self._locked:
                gpu_refusals.refuse_leftovers(pid)
        except BaseException:
            for pid in self._restore(later=False):
                self._staged.pop(pid, None)  # it stays checkpointed, which is parked, too
            self.threads.release_all()
            self.drop_files()
            raise
        self._locked, self._with_context = [], set()

    def _find_with_context(self) -> set[int]:
        """Return the processes whose ferries' memory a park has taken, and whose contexts are on the GPU."""
        return {
            pid
            for pid in pids(self._tree)
            if (ferry := Ferry(self._tree, pid)).is_there
            and ferry.bytes_in_files
            and cuda.holds_gpu(pid)
            and ferry.status().closed
        }

    def _checkpoint(self, pid: int, thread: int) -> None:
        before = processes.memory(pid).private_bytes
        files: list[StagingFile] = []
        try:
            with FileStaging(self._tree, pid, thread, DIRECTORY) as staging:
                cuda.checkpoint(pid)
            files = list(staging.files)
        except FreezeFailed as error:
            if not cuda.was_refused_by_system(error):
                raise
            # The driver's own way, into private memory, may work. A process that died in its Checkpoint has the same error,
            # and is refused again.
            logger.warning("%s It is tried again without staging files.", error)
            cuda.checkpoint(pid)
        self._staged[pid], size = files, sum(file.length for file in files)
        self._bytes[pid] = size or max(0, processes.memory(pid).private_bytes - before)
        if not any(self._needs[pid].values()):  # the driver does not report it
            context = max(0, self._bytes[pid] - TOLERANCE_BYTES)
            self._needs[pid] = {UNKNOWN: context + self.ferries.taken_bytes(pid)}

    def _note_needs(self) -> None:
        """Write the needs to a file: a later daemon that finds the processes checkpointed must not restore them without room."""
        needs = {processes.nspid(pid) or 0: self._to_restore(pid) for pid in self._needs}
        path = self._needs_path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(_TakenFromGpu(needs)))

    def give_back(self, *, later: bool = False) -> None:
        """Restore and unlock all processes that `take` checkpointed. Their tasks must run: the driver uses a thread of the target.

        If one process cannot be restored, the others still are; the first error is raised at the end. If other programs took
        the GPU's memory meanwhile, another GPU of the same model is used, if the process may see it. Without room Restore is
        not tried, because the driver would lose the process; it stays checkpointed, with its data in RAM, for the next call.
        With `later` this call neither waits nor raises; another call must follow.
        """
        failed: dict[int, GpuCkptError] = {}
        if self._locked:
            self.hold()
            try:
                failed = self._restore(later=later)
            finally:
                self.threads.release_all()
        self.threads.release_all()
        failed |= self.ferries.reopen(failed)
        if failed and not later:
            raise next(iter(failed.values()))

    def hold(self) -> None:
        """Hold the user's threads of the processes that `give_back` will restore, unless they are held already; never raises."""
        for pid in self._locked:
            try:
                self.threads.hold(pid, driver_thread(pid, FreezeFailed))
            except CheckpointError as error:
                logger.warning("the threads of process %d are not held: %s", pid, error)

    def _restore(self, *, later: bool) -> dict[int, GpuCkptError]:
        waiting, self._locked = self._locked[::-1], []
        failed: dict[int, GpuCkptError] = {}
        with self._progress.stage(Stage.GPU_RESTORE, undo=True):
            self.ferries.drop_reserved()
            free, fitting = gpu.free_bytes(), dict[int, Placement]()
            for pid in waiting:
                placement = self._place(pid, free)
                if not placement.shortage:
                    free = reserved(free, self._needs_now(pid), placement)
                    fitting[pid] = placement

            def bring_back(pid: int) -> None:
                try:
                    placement = fitting.get(pid) or self._wait(
                        pid, 0.0 if later else PATIENCE_SECONDS
                    )
                    cuda.bring_back(pid, placement.gpu_map)
                except GpuCkptError as error:
                    logger.exception("GPU memory of process %d could not be brought back", pid)
                    failed[pid] = error

            side_by_side(bring_back, fitting, held=self.threads)
            for pid in waiting:
                if pid not in fitting:
                    bring_back(pid)
        self._locked = [
            pid for pid in reversed(waiting) if pid in failed and (later or pid not in fitting)
        ]
        return {pid: failed[pid] for pid in waiting if pid in failed}

    def _needs_now(self, pid: int) -> dict[str, int]:
        if pid in self._with_context:
            return without(self._needs.get(pid, {}), gpu.used_by(pid))
        # A process whose Checkpoint was refused still has its memory on the GPU, and only needs to be unlocked.
        taken = cuda.state(pid) is cuda.ProcessState.CHECKPOINTED
        return self._to_restore(pid) if taken else {}

    def _to_restore(self, pid: int) -> dict[str, int]:
        return self.ferries.to_restore(pid, self._needs.get(pid, {}))

    def _place(self, pid: int, free: Mapping[str, int]) -> Placement:
        needs, here = self._needs_now(pid), gpu.gpus()
        allowed = visible(processes.environment(pid).get("CUDA_VISIBLE_DEVICES"), here)
        allowed = None if allowed is None else {*allowed, *needs}
        stays = pid in self._with_context or self.ferries.has_given(pid)
        return place(needs, here, here, free, allowed=allowed, stays=stays)

    def _wait(self, pid: int, patience: float) -> Placement:
        """Wait for room on the GPUs and return the placement. Raises FreezeFailed after `patience` seconds."""
        placement = when_there_is_room(lambda: self._place(pid, gpu.free_bytes()), patience)
        if placement.shortage:
            raise _no_room(pid, placement.shortage)
        return placement

    def _checkpointed(self) -> list[int]:
        return [
            pid
            for pid in pids(self._tree)
            if cuda.may_be_parked(pid) and cuda.state(pid) is cuda.ProcessState.CHECKPOINTED
        ]

    def _take_parked(self) -> None:
        noted = self._noted_needs()
        for pid in self._checkpointed():
            mapped = {area.path for area in processes.maps(pid)}
            paths = {path for path in mapped if path.startswith(f"{DIRECTORY}/")}
            files = [StagingFile(path, self._tree.inside(path).stat().st_size) for path in paths]
            if ferry_file := Ferry(self._tree, pid).file:
                files.append(ferry_file)
            self._staged[pid] = sorted(files)
            self._bytes[pid] = sum(file.length for file in files)
            self._needs[pid] = noted.get(processes.nspid(pid) or 0, {})
            self._parked.add(pid)

    def give_back_parked(self) -> None:
        """Give back the memory of processes that are parked, or whose memory was given back in part. Raises what `give_back` raises."""
        self._find_taken()
        self._find_parked_with_context()
        for pid in self._with_context:
            self._wait(pid, PATIENCE_SECONDS)
        self.give_back()
        self._with_context = set()

    def _find_parked_with_context(self) -> None:
        self._with_context = self._find_with_context()
        self._needs |= self._parked_needs(self._with_context)

    def _find_taken(self) -> list[int]:
        """Find the processes that other freezes left locked, checkpointed, or with a closed gate; return all that use the driver."""
        with_driver = [p for p in pids(self._tree) if cuda.holds_gpu(p) or cuda.may_be_parked(p)]
        self.ferries.find(with_driver)
        states = {pid: cuda.state(pid) for pid in with_driver}
        checkpointed = [p for p in states if states[p] is cuda.ProcessState.CHECKPOINTED]
        self._needs |= self._parked_needs(checkpointed)
        self._locked = [
            p for p in states if p in checkpointed or states[p] is cuda.ProcessState.LOCKED
        ]
        return with_driver

    def parked_room(self) -> Placement:
        """Return the placement of the parked memory as it would be now; of several processes' the one with the least memory to spare."""
        self._needs |= self._parked_needs(self._checkpointed())
        self._find_parked_with_context()
        free, found = gpu.free_bytes(), list[Placement]()
        for pid in self._needs:
            found.append(self._place(pid, free))
            free = reserved(free, self._needs_now(pid), found[-1])
        return min(
            found,
            key=lambda each: each.free_bytes - each.needed_bytes,
            default=Placement({}, 0, 0),
        )

    def hold_taken(self) -> None:
        """Hold the user's threads of processes that another daemon left checkpointed, before they run on; never raises.

        The driver reports the state of a running process only, so processes without open devices, which may be parked, are held.
        """
        for pid in filter(cuda.may_be_parked, pids(self._tree)):
            if (thread := cuda.restore_thread(pid)) is not None:
                with suppress(CheckpointError):
                    self.threads.hold(pid, thread)

    def recover(self) -> bool:
        """Give back the memory of processes that another daemon left locked or checkpointed; return whether nothing is left to do.

        This does not wait for room. Errors are logged; the next save tries again.
        """
        with_driver = self._find_taken()
        self.give_back(later=True)
        self.ferries.drop_handed_over(with_driver)
        # This must not wait until each process is recovered, which may take until the next save.
        self.ferries.remove_files(with_driver)
        done = not self._locked and not self.ferries.waiting
        for pid in set(with_driver) - set(self._locked):
            try:
                # An interrupted staging may have left a file open or mapped; the driver no longer uses one.
                release.release(pid, devices=f"{DIRECTORY}/")
            except GpuCkptError:
                logger.exception("process %d keeps a file of its GPU memory open", pid)
                done = False
        return done

    def _parked_needs(self, parked: Iterable[int]) -> dict[int, dict[str, int]]:
        noted = self._noted_needs()
        return {
            pid: noted.get(processes.nspid(pid) or 0)
            or {UNKNOWN: _staged_bytes(pid) + Ferry(self._tree, pid).bytes_in_files}
            for pid in parked
        }

    @property
    def _needs_path(self) -> Path:
        return self._tree.inside(f"{DIRECTORY}/{_NEEDS}")

    def _noted_needs(self) -> dict[int, dict[str, int]]:
        try:
            return decoding.from_json(self._needs_path.read_bytes(), _TakenFromGpu).needs
        except (OSError, msgspec.DecodeError):
            return {}

    def drop_files(self) -> None:
        """Remove the staging files, which the driver has unmapped by then, and drop the handed-over memory that was given back."""
        self.ferries.drop_handed_over()
        for pid, files in self._all_files().items():
            if pid in self._parked or pid in self.ferries.waiting:
                continue
            for path in (path for file in files for path in file.paths):
                with suppress(OSError):
                    self._tree.inside(path).unlink(missing_ok=True)

    def records(self) -> list[GpuProcess]:
        """Return the manifest's record of each process. Of a later call the processes may have ended, but not of the first one."""
        return [
            GpuProcess(
                self._nspids.setdefault(pid, processes.nspid(pid) or 0),
                [file.path for file in files],
                self._bytes[pid] + sum(file.length for file in self.ferries.files.get(pid, [])),
                self._needs[pid],
            )
            for pid, files in self._all_files().items()
        ]

    @property
    def stored_bytes(self) -> int:
        """How many bytes are to be stored: of files, and of memory that is still to be copied to files."""
        in_files = sum(file.length for files in self._staged.values() for file in files)
        return in_files + sum(map(self.ferries.taken_bytes, self._staged))

    def files(self) -> dict[str, list[Path]]:
        """Return the paths of the files of each stream, as seen from here, by its name."""
        return {
            f"gpu{file.path}": [self._tree.inside(path) for path in file.paths]
            for files in self._all_files().values()
            for file in files
        }

    def _all_files(self) -> dict[int, list[StagingFile]]:
        """Return the files of the driver and of the ferry, by process."""
        drivers, ferries = self._staged, self.ferries.files
        return {pid: drivers.get(pid, []) + ferries.get(pid, []) for pid in {**drivers, **ferries}}


def _staged_bytes(pid: int) -> int:
    """Return how many bytes a parked process needs on the GPU."""
    staged = (
        area.end - area.start
        for area in processes.maps(pid)
        if area.path.startswith(f"{DIRECTORY}/")
    )
    return max(0, sum(staged) - TOLERANCE_BYTES)


def _no_room(pid: int, shortage: str) -> FreezeFailed:
    return FreezeFailed(
        f"Another program took the GPU memory of the kernel while it was being saved. {shortage}",
        hint="The kernel's data are safe, but its GPU work waits. Free GPU memory (nvidia-smi shows who holds it), then save"
        " again: that gives it back first.",
        details=f"process {pid} ({processes.name(pid)})",
    )
