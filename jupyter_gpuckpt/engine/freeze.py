"""The freeze of a process tree: all steps that must happen while nothing in it runs, each with its undo beside it.

Covers: moving GPU memory to RAM, the skeleton dump, the ghost, captured files, letting the tasks go on.
Does not cover: cutting, compressing and storing the frozen memory (`images`, `store`), the order of a whole save
(`snapshots.save`). See also: docs/decisions/saves.md.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..errors import CheckpointError, FreezeFailed, KernelLost
from ..host import processes
from ..wire.manifest_records import CapturedFile, GpuProcess, Process, SaveOptions
from ..wire.progress import Progress, Stage
from . import kept_file_copies
from .audit.fact_records import Facts
from .audit.reading import Audit
from .capture import Capture, capture, drop_copies, empty, unlink_strays
from .criu import command_lines as criu_options
from .criu import dump as criu_dump
from .criu import hidden_pages, memory_images
from .criu import images as criu_images
from .criu.deleted_files import DeletedFiles
from .criu.hidden_pages import Area
from .criu.images import Extent
from .gpu.driver.digests import EarlierMemory
from .gpu.ferry.ferries import Ferries, Until
from .gpu.ferry.ferry_copies import FerryCopy
from .gpu.ferry.ferry_windows import StoreWindow
from .gpu.gpu_processes import GpuProcesses
from .memory.ghost import Ghost, MemoryWatch
from .memory.reader import CopiedMemory, ProcessMemory, unforked_areas
from .memory.tracked_kernels import TrackedKernel, Unwritten
from .preflight import Plan
from .settings import EngineSettings
from .tcp import listeners
from .tcp import record as tcp_record
from .tree import affinity, landlock, user_namespaces
from .tree.launch import alive, pids, wait_until
from .tree.standstill import Standstill
from .tree.tree import Tree

logger = logging.getLogger(__name__)

#: The content of the `syscall` file of a thread that has not left its CPU, and the most attempts to count context switches.
_RUNS, _COUNTS = b"running\n", 100
#: A function that begins to store GPU files: their paths, and what must be stored of those of the ferry, by the names of their streams.
FilesTaken = Callable[[Mapping[str, Sequence[Path]], Mapping[str, FerryCopy]], None]


class Frozen(msgspec.Struct):
    """A tree as it was at one moment; all of it can be read until the `frozen` block ends."""

    images: Path
    processes: list[Process]
    memory: list[ProcessMemory | CopiedMemory]
    captured: list[CapturedFile]
    captured_files: dict[str, Path]
    #: Of a save with handed-over memory it is complete when `finish_gpu` has returned.
    gpu: list[GpuProcess]
    #: How many bytes of GPU memory are to be stored.
    gpu_bytes: int
    #: TCP connections with both ends in the tree.
    tcp: tcp_record.Recorded
    #: What Linux shows of the tree (`engine.audit`).
    facts: Callable[[], Facts] = Facts
    #: Former names of deleted files, by their names in the images.
    gone: dict[str, str] = {}
    #: The copies of files that the tree has open in place of the files (`engine.kept_files`), by the files' names in the images.
    copies: dict[str, Path] = {}
    frozen_seconds: float = 0.0
    #: The memory of the kernel's own process, in a save that of its ghost, if it can be told what of it was not written since an earlier
    #: snapshot.
    tracked: ProcessMemory | None = None
    unwritten: Unwritten | None = None
    _switches: dict[int, dict[int, int]] = {}
    _gpu_copying: Future[None] | None = None
    _kept: ExitStack = msgspec.field(default_factory=ExitStack)
    _beside: ThreadPoolExecutor | None = None

    def release_memory(self) -> None:
        """Begin to free the copies of the running tasks' memory, which can no longer be read then.

        A thread frees them, if one can be started. Leaving the block waits for its end, and frees what is left.
        """
        if self._beside is not None:
            with suppress(RuntimeError):  # no thread can be started
                self._beside.submit(self._kept.close)

    def finish_gpu(self) -> None:
        """Wait until handed-over GPU memory is copied, and `gpu_files_taken` was called with its files. Raises FreezeFailed."""
        if self._gpu_copying is not None:
            self._gpu_copying.result()

    def prove_still(self) -> None:
        """Raise FreezeFailed if a task of a suspend has run since the freeze (an outside SIGCONT), because its pages would not match."""
        if pid := _that_has_run(self._switches):
            raise FreezeFailed(
                "A process of the kernel was woken by another program while it was being suspended.",
                hint="The kernel runs on. Find the program that sends SIGCONT to its processes, then try again.",
                details=f"process {pid} ({processes.name(pid)})",
            )


@contextmanager
def frozen(  # noqa: PLR0913 - all but the first four by name
    tree: Tree,
    plan: Plan,
    settings: EngineSettings,
    options: SaveOptions,
    *,
    gpu_files_taken: FilesTaken = lambda files, copies: None,
    earlier_gpu: EarlierMemory | None = None,
    store_window: StoreWindow | None = None,
    writes: TrackedKernel | None = None,
    at_standstill: Callable[[], None] = lambda: None,
    progress: Progress,
) -> Iterator[Frozen]:
    """Freeze `tree`. With `options.stop` (suspend) its tasks stay stopped inside the block; otherwise (save) they run again.

    `gpu_files_taken` is called with the files that have GPU memory, and what must be stored of those of the ferry; in a save that is
    after the tasks run on. If memory was handed over, another thread calls it again with the files of that. `earlier_gpu`: what the
    store has of the ferry's memory already. `store_window`: see `Ferries`. `writes`: the tracking of the kernel's writes. `at_standstill`
    is called while all tasks stand still.

    Leaving the block by an exception undoes everything: the tasks run on, the GPU has its memory back, nothing is left on
    disk. Leaving it normally drops the ghost and the images; a suspended tree must have been killed by then.
    """
    if not alive(tree):
        raise KernelLost("The kernel's process is gone.")
    stop = options.stop
    # `tree_cleanup` removes files in the tree's own namespaces. After a suspend it must not run: the namespaces are gone, and
    # init's pid may belong to another process.
    with ExitStack() as host_cleanup, ExitStack() as tree_cleanup, ExitStack() as rollback:
        gpu = GpuProcesses(tree, progress, Ferries(tree, earlier_gpu, store_window, plan.ram_needs))
        rollback.callback(gpu.give_back)
        tree_cleanup.callback(gpu.drop_files)
        gpu.take(
            settings.gpu_lock_seconds,
            parked=options.parked,
            peer_access_off=options.peer_access_off,
            until=Until.ENDED if stop else Until.GIVEN_BACK,
        )

        audit = Audit(tree)
        standstill = Standstill.of(tree, audit, lasts=options.stands_still)
        rollback.callback(standstill.end)
        # No thread may run between Checkpoint and Restore: the memory that it shares with the GPU is not mapped meanwhile.
        rollback.callback(gpu.hold)
        standstill.begin_with(gpu.threads)
        images, unforked, gone = _dump(
            tree, plan, settings, standstill, progress, tree_cleanup, host_cleanup
        )
        links = [link for link, _ in criu_images.link_remaps(images)]
        # CRIU leaves its hard links behind; they must be gone before the tasks run, or the next save fails on them.
        tree_cleanup.callback(_unlink, tree, links)

        with progress.stage(Stage.CAPTURE):
            captured = capture(
                tree,
                private_shm=plan.private_shm,
                link_remaps=links,
                copy=not stop,
                held=host_cleanup,
            )
            tree_cleanup.callback(drop_copies, tree)
            at_standstill()
            listed = _processes(tree, images, standstill.user_stopped)
            memory = _memory(tree, images, listed, plan)
            keeping = host_cleanup.enter_context(ExitStack())
            kept = (
                _Kept(memory, _of_kernel(tree, memory))
                if stop
                else _keep(tree, memory, unforked, settings, keeping, _usable(writes, gpu))
            )
            _unlink(tree, links)
            tcp = tcp_record.Recorded(tree, widening=stop)
            rollback.callback(tcp.close)
        result = _result(images, listed, kept, captured, gpu, tcp)
        result.gone, result.facts, result._kept = gone, audit.read(), keeping
        result.copies = kept_file_copies.give_own_names(images, settings.kept_dir)
        if stop:
            result._switches, result.unwritten = _counted_once_stopped(tree), _look(writes, gpu)
            gpu_files_taken(gpu.files(), gpu.ferries.copies)
        else:
            with progress.stage(Stage.THAW):
                tcp.close()
                result.frozen_seconds = _let_go(gpu, standstill, gpu_files_taken)
            rollback.pop_all()
            # Memory for which the GPU had no room is restored when the snapshot is complete.
            rollback.callback(gpu.give_back)
            # This thread's work ends before anything is undone.
            result._beside = rollback.enter_context(ThreadPoolExecutor(1, "beside-save"))
            if gpu.ferries.has_handed_over:  # the caller stores other memory meanwhile
                result._gpu_copying = result._beside.submit(_copy_gpu, gpu, result, gpu_files_taken)
        yield result
        if stop:
            result.frozen_seconds = time.monotonic() - standstill.began
            tcp.reset()
            tree_cleanup.pop_all()
            rollback.pop_all()


def _let_go(gpu: GpuProcesses, standstill: Standstill, files_taken: FilesTaken) -> float:
    """Let the tasks run on and give them their GPU memory back; return for how many seconds GPU work stood still."""
    gpu.hold()
    standstill.end()
    handed_over = gpu.ferries.has_handed_over
    if not handed_over:
        files_taken(gpu.files(), gpu.ferries.copies)
    gpu.give_back(later=True)
    seconds = time.monotonic() - standstill.began
    if handed_over:
        gpu.give_back()  # the memory for which there was no room at once
        # Reading these files beside the Restore would prolong it.
        files_taken(gpu.files(), gpu.ferries.copies)
    return seconds


def _copy_gpu(gpu: GpuProcesses, result: Frozen, files_taken: FilesTaken) -> None:
    """Copy the handed-over memory to files, while the tasks run with their own copies, and complete the result's GPU part."""
    before = gpu.files()
    try:
        gpu.ferries.copy_handed_over()
    except BaseException:
        # Other memory may be stored for minutes before the error is noticed.
        gpu.ferries.drop_handed_over()
        raise
    result.gpu = gpu.records()
    files_taken(
        {name: paths for name, paths in gpu.files().items() if name not in before},
        gpu.ferries.copies,
    )


def _dump(
    tree: Tree,
    plan: Plan,
    settings: EngineSettings,
    standstill: Standstill,
    progress: Progress,
    tree_cleanup: ExitStack,
    host_cleanup: ExitStack,
) -> tuple[Path, list[Area], dict[str, str]]:
    """Dump the tree; return the folder of the images, the areas that a ghost of the kernel lacks, and `Frozen.gone`.

    The images of a skeleton dump are on scratch, those of a plain dump on the disk.
    """
    if plan.method == "skeleton":
        images = tree.inside(criu_options.IMAGES)
        empty(images)
        tree_cleanup.callback(empty, images)
    else:
        # The path is the same in the kernel's mount namespace and here. Here it still exists when the tree is gone.
        images = settings.spill_dir / f"dump-{tree.init_pid}"
        images.mkdir(parents=True)
        host_cleanup.callback(shutil.rmtree, images, ignore_errors=True)

    gone = DeletedFiles(tree)
    tree_cleanup.callback(gone.remove)

    def halt() -> None:
        progress.check()  # the last chance: CRIU is not interrupted when it has begun
        standstill.begin()
        landlock.refuse(tree, standstill.pids)
        if user_namespaces.has_own(tree.init_pid):
            gone.find(standstill.pids)

    unforked: list[Area] = []
    with progress.stage(Stage.FREEZE):
        try:
            if plan.method == "skeleton":
                unforked = _dump_skeleton(tree, plan, settings, standstill, images, halt)
            else:
                criu_dump.dump_plain(
                    settings, tree, str(images), plan.ghost_limit_bytes, halt, plan.own_sockets
                )
            # If the kernel ended just before its parent was stopped, CRIU has dumped a process that nobody had waited for.
            if processes.is_ending(tree.kernel_pid):
                raise FreezeFailed(
                    "The kernel ended when it was to be frozen.",
                    details=f"process {tree.kernel_pid} had exited when the dump was made",
                )
        except BaseException:
            standstill.repair()
            unlink_strays(tree)
            raise
    listeners.correct_images(tree, images)
    _correct_locks(standstill.pids, images)
    return images, unforked, gone.names


def _correct_locks(pids: list[int], images: Path) -> None:
    """Prevent a restore from filling memory that is locked only when it is used; the audit locks it again."""
    for pid in pids:
        if processes.status(pid).get("VmLck", "0 kB") != "0 kB":
            areas = processes.flagged_areas(pid, "lf")
            nspid = processes.nspid(pid) or 0
            if areas and (images / f"mm-{nspid}.img").exists():
                memory_images.unlock(images, nspid, areas)


def _dump_skeleton(
    tree: Tree,
    plan: Plan,
    settings: EngineSettings,
    standstill: Standstill,
    images: Path,
    halt: Callable[[], None],
) -> list[Area]:
    """Let CRIU dump the skeleton while a thread scans the hidden pages; return the areas that a ghost would lack."""
    listed = tree.inside(hidden_pages.LIST)
    listed.unlink(missing_ok=True)  # CRIU must not take an older list for this one
    looks = list[Future[tuple[dict[int, list[Extent]], list[Area]]]]()
    with ThreadPoolExecutor(1, "look") as beside:

        def halt_and_look() -> None:
            halt()
            hidden = hidden_pages.HiddenPages(standstill.pids)
            hidden.write(listed)
            looks.append(beside.submit(lambda: (hidden.scan(), unforked_areas(tree.kernel_pid))))

        limit = plan.ghost_limit_bytes
        criu_dump.dump_skeleton(
            settings, tree, criu_options.IMAGES, limit, halt_and_look, plan.own_sockets
        )
        pages, unforked = looks[0].result()
    hidden_pages.reveal(images, pages)
    return unforked


def _unlink(tree: Tree, links: list[str]) -> None:
    for link in links:
        with suppress(OSError):
            tree.inside(link).unlink(missing_ok=True)


def _processes(tree: Tree, images: Path, stopped: set[int]) -> list[Process]:
    by_nspid = {processes.nspid(pid): pid for pid in pids(tree)}
    return [
        Process(
            found.pid,
            found.parent,
            found.name,
            stopped=by_nspid.get(found.pid) in stopped,
            pages=f"pages/{found.pid}" if (images / f"pagemap-{found.pid}.img").exists() else "",
            processors=affinity.chosen(tree, by_nspid[found.pid]) if found.pid in by_nspid else {},
        )
        for found in criu_images.processes(images)
    ]


def _memory(tree: Tree, images: Path, listed: list[Process], plan: Plan) -> list[ProcessMemory]:
    if plan.method != "skeleton":
        return []
    by_nspid = {processes.nspid(pid): pid for pid in pids(tree)}
    return [
        ProcessMemory(
            process.pages,
            by_nspid[process.pid],
            (e for e in criu_images.pagemap(images, process.pid) if e.lazy),
        )
        for process in listed
        if process.pages
    ]


class _Kept(NamedTuple):
    """Memory that can be read when the tasks run again. `tracked`, `unwritten`: see `Frozen`."""

    memory: Sequence[ProcessMemory | CopiedMemory]
    tracked: ProcessMemory | None = None
    unwritten: Unwritten | None = None


def _keep(
    tree: Tree,
    memory: list[ProcessMemory],
    unforked: list[Area],
    settings: EngineSettings,
    keeping: ExitStack,
    writes: TrackedKernel | None,
) -> _Kept:
    """Return the memory in a form that can be read when the tasks run again: a ghost of the kernel, copies of other processes.

    Only the kernel gets a ghost: its parent is our keeper, which reaps any child. Another parent would see the ghost in
    os.wait(). If no ghost can be made, all memory is copied.
    """
    kept: list[ProcessMemory | CopiedMemory] = []
    tracked, unwritten = None, None
    for part in memory:
        if part.pid == tree.kernel_pid:
            part.keep(unforked)
            # What is written from here on counts for the next save, whether or not the ghost has it.
            unwritten = writes.begin() if writes is not None else None
            try:
                ghost = keeping.enter_context(Ghost(part.pid))
            except (OSError, CheckpointError) as error:
                unwritten = None
                logger.warning("no ghost of process %d (%s); its memory is copied", part.pid, error)
            else:
                if writes is not None and unwritten is not None:
                    unwritten = writes.look_again(unwritten)
                keeping.enter_context(MemoryWatch(ghost, part.pid, settings.headroom_bytes))
                tracked = part.of(ghost.pid)
                kept.append(tracked)
                continue
        kept.append(part.copied(settings.threads))
    return _Kept(kept, tracked, unwritten)


def _of_kernel(tree: Tree, memory: Sequence[ProcessMemory]) -> ProcessMemory | None:
    return next((part for part in memory if part.pid == tree.kernel_pid), None)


def _usable(writes: TrackedKernel | None, gpu: GpuProcesses) -> TrackedKernel | None:
    """Return the tracking, but None for trees that use a GPU, for which it ends: nobody has proved what a driver does to pages."""
    if writes is not None and gpu.records():
        writes.switch_off("it uses a GPU")
        return None
    return writes


def _look(writes: TrackedKernel | None, gpu: GpuProcesses) -> Unwritten | None:
    usable = _usable(writes, gpu)
    return usable.look() if usable is not None else None


def _result(
    images: Path,
    listed: list[Process],
    kept: _Kept,
    captured: Capture,
    gpu: GpuProcesses,
    tcp: tcp_record.Recorded,
) -> Frozen:
    return Frozen(
        images=images,
        processes=listed,
        memory=list(kept.memory),
        captured=captured.files,
        captured_files=captured.sources,
        gpu=gpu.records(),
        gpu_bytes=gpu.stored_bytes,
        tcp=tcp,
        tracked=kept.tracked,
        unwritten=kept.unwritten,
    )


def _counted_once_stopped(tree: Tree) -> dict[int, dict[int, int]]:
    """Return the context switches of every thread, by process, once all have left their CPUs.

    A task shows as stopped just before it leaves its processor. Reading its `syscall` file waits until it has left (fs/proc/base.c,
    proc_pid_syscall: wait_task_inactive), or says "running" if that takes too long. So the threads are counted again until no
    count has changed and none was running.
    """
    members = pids(tree)
    counted: dict[int, dict[int, int]] = {}
    for _ in range(_COUNTS):
        before, still = counted, True
        for pid in members:
            for tid in processes.threads(pid):
                wait_until(lambda tid=tid: processes.state(tid) in ("T", "Z", None), timeout=5.0)  # type: ignore[misc]
                with suppress(OSError):
                    still &= Path(f"/proc/{pid}/task/{tid}/syscall").read_bytes() != _RUNS
        counted = {pid: processes.context_switches(pid) for pid in members}
        if still and counted == before:
            break
    return counted


def _that_has_run(counted: Mapping[int, Mapping[int, int]]) -> int | None:
    """Return a process that has run or ended since `_counted_once_stopped` was called; None if there is none."""
    return next(
        (pid for pid, before in counted.items() if processes.context_switches(pid) != before), None
    )
