"""The restore of the GPU memory of a resumed tree, before any of the user's code runs.

Does not cover: the driver's calls (`cuda.py`), the choice of GPUs (`placement.py`), the processes of a freeze
(`gpu_processes.py`).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from ...errors import CheckpointError, ThawFailed
from ...host import gpu, processes
from ...wire.manifest_records import Gpu, GpuProcess
from ...wire.progress import Progress, Stage
from ..injection import ptrace
from ..injection.threads_held import ThreadsHeld
from ..tree.launch import pids
from ..tree.tree import Tree
from ..tree.user_threads import UserThreads
from .driver import cuda
from .ferry import ferry_fills, ferry_windows
from .ferry.ferry import Ferry, Fill
from .ferry.ferry_fills import FileOfStream, ReadStream, WaitForStream
from .placement import UNKNOWN, Placement, place, together

#: How long to wait for other programs to free GPU memory.
PATIENCE_SECONDS = 30.0
#: The most bytes by which staging files may exceed the memory that is needed on the GPU.
TOLERANCE_BYTES = 256 << 20
_LOOK_SECONDS = 0.1
#: The time after which a ferry that has not got its memory is assumed to wait for a held thread.
_FERRY_SECONDS = 10.0

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def restore(
    tree: Tree,
    records: Sequence[GpuProcess],
    known: Sequence[Gpu],
    allowed: Collection[str] | None,
    progress: Progress,
    *,
    ferries_written: Callable[[], None],
    wait_for: WaitForStream,
    file_of: FileOfStream,
    read: ReadStream | None = None,
) -> None:
    """Move GPU memory of a restored tree, whose tasks are all stopped (state T), back to the GPUs that `placement_of` chooses.

    The driver's files are complete. `wait_for`: waits until the file of a ferry's stream, which `file_of` returns, is written so far;
    `ferries_written`: until all of these are complete. `read`: where RAM is short for them, makes files of a part of a stream.
    Every thread but the driver's own and the ferry's is held meanwhile, and after an error these processes are killed before the threads
    are released, so user code does not run without its memory (but see `_fill_ferries`). On return the CUDA processes' tasks run.
    Raises ThawFailed, or the error of `ferries_written`, `wait_for` or `read`.
    """
    if not records:
        return
    placement = when_there_is_room(lambda: placement_of(records, known, allowed), PATIENCE_SECONDS)
    if placement.shortage:
        raise ThawFailed(
            f"There is no room on the GPU. {placement.shortage}",
            hint="Free GPU memory (nvidia-smi shows who holds it) and resume again. The snapshot is untouched.",
            details=f"{placement.needed_bytes} bytes are needed, {placement.free_bytes} bytes are free",
        )
    by_nspid = {processes.nspid(pid): pid for pid in pids(tree)}
    sizes = {by_nspid[record.pid]: record.memory_bytes for record in records}

    def bring_back(pid: int) -> None:
        cuda.restore(pid, placement.gpu_map)
        cuda.unlock(pid)
        progress.advance(sizes[pid])

    ferries = {pid: ferry for pid in sizes if (ferry := Ferry(tree, pid)).is_there}
    running: list[ThreadsHeld] = []
    with (
        ExitStack() as held,
        _killed_after_an_error(running),
        progress.stage(Stage.GPU_RESTORE, sum(sizes.values())),
    ):
        for pid in sizes:
            # If the daemon dies now, so does the process (EXITKILL): its code must not run before its GPU memory is restored.
            working = [driver_thread(pid, ThawFailed)]
            if pid in ferries and (thread := ferries[pid].thread) is not None:
                working.append(thread)
            threads = ThreadsHeld(pid, *working, options=ptrace.EXITKILL)
            running.append(held.enter_context(threads))
            os.kill(pid, signal.SIGCONT)
        side_by_side(bring_back, sizes)
        reading = _Reading()
        if read is None:
            fill = partial(ferry_fills.as_written, reading.counted(wait_for), file_of)
        else:
            fill = partial(ferry_fills.by_windows, reading.counted(read))
        fills = {
            by_nspid[record.pid]: partial(fill, f"gpu{path}")
            for record in records
            for path in record.staging
            if ferry_windows.is_ferries(path)
        }
        _fill_ferries(ferries, fills, reading, held, running, ferries_written)
    _remove([tree.inside(path) for record in records for path in record.staging])


def _remove(paths: Iterable[Path]) -> None:
    """Remove files; a thread frees their memory, which takes 3 ms per GB."""
    with ExitStack() as opened:
        for path in paths:
            with suppress(OSError):
                descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
                opened.callback(os.close, descriptor)
            path.unlink(missing_ok=True)
        freeing = opened.pop_all()
    try:
        threading.Thread(target=freeing.close, name="staging-removal", daemon=True).start()
    except RuntimeError:  # no thread can be started
        freeing.close()


@contextmanager
def _killed_after_an_error(running: list[ThreadsHeld]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        while running:  # each once: afterwards its pid may be another process's
            with suppress(OSError):
                running.pop().kill()
        raise


class _Reading:
    """A counter of calls that read for ferries, or wait for it: as long as there are any, a slow ferry need not wait for a held thread.

    Several ferries make such calls at the same time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = self._ended = self._seen = 0

    def counted(self, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        """Return the function with its calls counted."""

        def call(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
            with self._lock:
                self._begun += 1
            try:
                return function(*arguments, **named)
            finally:
                with self._lock:
                    self._ended += 1

        return call

    def goes_on(self) -> bool:
        """Return whether a call is running, or one has ended since the last call of this method."""
        with self._lock:
            before, self._seen = self._seen, self._ended
            return self._begun > self._ended or self._ended > before


def _fill_ferries(
    ferries: Mapping[int, Ferry],
    fills: Mapping[int, Fill],
    reading: _Reading,
    held: ExitStack,
    running: list[ThreadsHeld],
    written: Callable[[], None],
) -> None:
    """Give the ferries their memory and open their gates; wait until all files are `written`.

    Raises FreezeFailed, or the error of `written`.

    A held thread may own a lock (of malloc) that a ferry needs. So the threads are released after some seconds, in which nothing was
    `reading` for a ferry: as long as the gate is closed, none of them can use the GPU.
    """
    with (
        ThreadPoolExecutor(max(1, len(ferries)), "ferries") as pool,
        _killed_after_an_error(running),
    ):
        filled = [pool.submit(ferry.reopen, fill=fills.get(pid)) for pid, ferry in ferries.items()]
        # Its error comes first: it is that of the ferries, too.
        written()
        reading.goes_on()  # only what is read from now on counts
        while wait(filled, timeout=_FERRY_SECONDS).not_done:
            if not reading.goes_on():
                held.close()
                break
        for each in filled:
            each.result()


def placement_of(
    records: Sequence[GpuProcess], known: Sequence[Gpu], allowed: Collection[str] | None
) -> Placement:
    """Return the placement of these processes' memory on this machine as it would be now.

    `known`: the GPUs of the machine where it was saved; `allowed`: UUIDs to choose from, None: all.
    """
    needs = together(
        [
            record.by_gpu or {UNKNOWN: max(0, record.memory_bytes - TOLERANCE_BYTES)}
            for record in records
        ]
    )
    return place(needs, known, gpu.gpus(), gpu.free_bytes(), allowed=allowed)


def when_there_is_room(look: Callable[[], Placement], patience: float) -> Placement:
    """Return the first placement without a shortage, or the last one after `patience` seconds."""
    deadline = time.monotonic() + patience
    while (found := look()).shortage and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    return found


def side_by_side(
    work: Callable[[int], None], items: Iterable[int], *, held: UserThreads | None = None
) -> None:
    """Do `work` for all items in parallel, each in a thread; raise the first error when all have ended. `held`: see `UserThreads`."""
    waiting = list(items)
    with ThreadPoolExecutor(max(1, len(waiting)), "gpu") as pool:
        begun = [pool.submit(work, item) for item in waiting]
        if held is not None:
            held.wait_for(begun)
    for each in begun:
        each.result()


def driver_thread(pid: int, error: type[CheckpointError]) -> int:
    """Return the thread in which the driver works; it must not be held, or the driver would wait forever."""
    thread = cuda.restore_thread(pid)
    if thread is None:
        raise error(
            "The CUDA driver does not know its own thread in the kernel.",
            hint="Update the NVIDIA driver; `jupyter gpuckpt doctor` names its version.",
            details=f"cuCheckpointProcessGetRestoreThreadId({pid})",
        )
    return thread
