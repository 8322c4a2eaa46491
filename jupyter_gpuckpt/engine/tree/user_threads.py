"""The threads of CUDA processes, held while the driver unmaps memory that they may be using.

Checkpoint unmaps all memory that CPU and GPU share (pinned memory, flags that the GPU writes) and Restore maps it again at the same
addresses. A Lock holds CUDA calls only. A thread that touches such memory in between, because it copies into pinned memory or reads a
flag now and then, as one of JAX's does every five seconds, dies of SIGSEGV, and its process with it (seen in one of 30 Checkpoints).
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path

from ...host import processes
from ..injection.threads_held import ThreadsHeld
from .endless_waits import restart_endless_wait
from .launch import wait_until

logger = logging.getLogger(__name__)

_FUTEX = 202
#: The time after which a lock that the driver's thread waits for is assumed to be owned by a held thread.
_LOCK_SECONDS = 2.0
_LOOK_SECONDS = 0.05
_STOP_SECONDS = 10.0


class UserThreads:
    """The threads of CUDA processes except the driver's, which are held from `hold` to `stop` or `release`.

    All methods must be called in one thread: only the thread that traces another can detach it. If this process dies, the threads
    run on.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[ThreadsHeld, int]] = {}
        #: time.monotonic() when the first of them was held.
        self.began = 0.0

    def hold(self, pid: int, driver_thread: int) -> None:
        """Hold the threads of a process, whether it runs or is stopped. Raises CheckpointError; then none of them is held."""
        if pid in self._held:
            return
        self.began = self.began or time.monotonic()
        threads = ThreadsHeld(pid, driver_thread)
        threads.__enter__()
        for tracee in threads.tracees():
            restart_endless_wait(tracee)
        self._held[pid] = threads, driver_thread

    @property
    def pids(self) -> list[int]:
        """Host pids of the processes whose threads are held."""
        return list(self._held)

    def was_stopped(self, pid: int) -> bool:
        """Return whether the user had stopped a process before it was held."""
        return self._held[pid][0].was_stopped

    def release(self, pid: int) -> None:
        """Release the threads of a process: they run on, or are stopped if their process is."""
        self._held.pop(pid)[0].release()

    def release_all(self) -> None:
        """Release all threads that are still held."""
        for pid in self.pids:
            self.release(pid)

    def stop(self, pid: int) -> None:
        """Stop a process by SIGSTOP, and release its threads into that stop, so that they execute no instruction in between."""
        _, thread = self._held[pid]
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        # The driver's thread receives the signal; after that, all other threads must stop as soon as they are released.
        wait_until(lambda: processes.state(thread) in ("T", "Z", "X", None), timeout=_STOP_SECONDS)
        self.release(pid)

    def wait_for(self, calls: Iterable[Future[None]]) -> None:
        """Wait until these calls of the driver have ended.

        A held thread may own a lock (of malloc, of the loader) that the driver's thread needs. If the driver's thread waits for a
        lock for too long, the threads of its process are released: the risk of a SIGSEGV is better than waiting for ever.
        """
        since: dict[int, tuple[int, float]] = {}
        waiting = set(calls)
        while waiting:
            _, waiting = wait(waiting, timeout=_LOOK_SECONDS)
            now = time.monotonic()
            for pid, (_, thread) in list(self._held.items()):
                ticks = _ticks_in_lock(thread)
                if ticks is None:
                    since.pop(pid, None)
                elif pid not in since or since[pid][0] != ticks:
                    since[pid] = ticks, now
                elif now - since[pid][1] > _LOCK_SECONDS:
                    logger.warning(
                        "the CUDA driver waits for a lock in process %d; its threads are released",
                        pid,
                    )
                    self.release(pid)


def _ticks_in_lock(tid: int) -> int | None:
    """Return the CPU time of a thread that waits for a lock, in clock ticks; None if it does something else."""
    try:
        call = Path(f"/proc/{tid}/syscall").read_text().split()[0]
    except (OSError, IndexError):
        return None
    return processes.thread_ticks(tid) if call == str(_FUTEX) else None
