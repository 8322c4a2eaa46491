"""A ghost: a stopped copy-on-write twin of a process, whose memory can be read while the process itself runs on.

Covers: making, keeping and dropping it. Does not cover: reading it (`reader.py`), areas that a fork does not copy
(VmFlags `dc` and `wf`: read them before). See also: `injection/twins.py`.

A dump by CRIU fails while a ghost lives in its tree (`Unseizable non-zombie ... state t`).
"""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from ...errors import FreezeFailed
from ...host import processes
from ..injection import ptrace
from ..injection.ptrace import Kind
from ..injection.tracee import Tracee
from ..injection.twins import make_twin

logger = logging.getLogger(__name__)

_NR_CLOSE_RANGE = 436
_LAST_DESCRIPTOR = (1 << 32) - 1
_WORST_OOM_SCORE = "1000"
#: The polling interval of the watch. A kernel writes to new pages at some GB/s: a few dozen MB in this time, well below the headroom.
_LOOK_SECONDS = 0.01


class Ghost:
    """The twin of the process `host_pid`, from the constructor's return until `drop()`. Thread-safe.

    The process may run, sleep or be stopped (T); its state does not change. `pid` is the twin's, in our PID namespace. The twin has
    no descriptors (it keeps no pipe open and no lock held), never runs an instruction of the program, and is the first choice of the
    OOM killer. It dies with this process, because it is traced with PTRACE_O_EXITKILL by a thread that lives as long as the twin.

    Raises FreezeFailed when the process cannot be traced or the twin cannot be made (memory, number of processes).
    """

    def __init__(self, host_pid: int) -> None:
        self.pid = 0
        self._of = host_pid
        self._pidfd = -1
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._failures: list[Exception] = []
        self._thread = threading.Thread(target=self._live, name=f"ghost-of-{host_pid}", daemon=True)
        self._thread.start()
        self._ready.wait()
        for failure in self._failures:
            self._thread.join()
            raise _failed(host_pid, failure) if isinstance(failure, OSError) else failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.drop()

    @property
    def alive(self) -> bool:
        """Whether the twin's memory can still be read: False after `drop()`, and when the OOM killer killed it."""
        with self._lock:
            if self._pidfd < 0:
                return False
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)  # readable when it has ended, zombie or not
            return not poller.poll(0)

    def drop(self) -> None:
        """Kill and reap the twin, which frees its memory; return when it is gone. A second call does nothing."""
        with self._lock:
            if self._pidfd >= 0:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._thread.join()

    def _live(self) -> None:
        """Run the ghost's thread: all ptrace calls for the twin must be made in it."""
        twin: Tracee | None = None
        try:
            twin = self._make()
            self._pidfd = os.pidfd_open(twin.pid)
            twin.syscall(_NR_CLOSE_RANGE, 0, _LAST_DESCRIPTOR, 0)
            # With the program's score the OOM killer might choose the program instead.
            Path(f"/proc/{twin.pid}/oom_score_adj").write_text(_WORST_OOM_SCORE)
            self.pid = twin.pid
        except Exception as error:
            self._failures.append(error)  # raised in the constructor
            if twin is not None:
                twin.kill()
        finally:
            self._ready.set()
        if not self._failures:
            self._wait_for_its_end()
        with self._lock:
            if self._pidfd >= 0:
                os.close(self._pidfd)
            self._pidfd = -1

    def _make(self) -> Tracee:
        """Make the twin, stopped before its first instruction."""
        return make_twin(self._of)

    def _wait_for_its_end(self) -> None:
        """Sleep until the twin dies, by `drop()` or otherwise, and reap it as its tracer; then its parent can reap it."""
        while True:
            _, status = os.waitpid(self.pid, ptrace.WALL)
            if ptrace.decode(status).kind is Kind.ENDED:
                return


def _failed(pid: int, error: OSError) -> FreezeFailed:
    hints = {
        errno.ENOMEM: "Free some memory or allow overcommit (vm.overcommit_memory), or suspend instead of saving.",
        errno.EAGAIN: "The limit of processes is reached (ulimit -u, pids.max of the cgroup): raise it.",
        errno.EPERM: "Run `jupyter gpuckpt doctor`; a debugger or strace attached to the kernel has to be detached.",
    }
    return FreezeFailed(
        "A copy-on-write twin of the kernel could not be made.",
        hint=hints.get(error.errno or 0, "The kernel runs on as before. Suspend needs no twin."),
        details=f"process {pid}: {error}",
    )


class MemoryWatch:
    """A watcher that drops `ghost`, the twin of process `pid`, when less than `headroom_bytes` are left to that process.

    While the ghost lives, every page that the kernel rewrites exists twice. The OOM killer would choose the ghost first
    (oom_score_adj 1000), but only after the kernel had to wait for memory. And it kills the whole control group together where
    memory.oom.group is set, as Kubernetes does.

    It watches while the `with` block lasts. If the ghost was dropped by this watch or killed by the OOM killer, an error that
    leaves the block becomes a FreezeFailed that says so.
    """

    def __init__(self, ghost: Ghost, pid: int, headroom_bytes: int) -> None:
        self._ghost, self._pid, self._headroom = ghost, pid, headroom_bytes
        self._end = threading.Event()
        self._left = 0
        self._thread = threading.Thread(target=self._watch, name=f"memory-of-{pid}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()
        ended = processes.state(self._pid) in (None, "Z")
        if isinstance(error, FreezeFailed) and not self._ghost.alive and not ended:
            raise FreezeFailed(
                "Memory became short while the kernel was being saved, so the save was given up. The kernel runs on.",
                hint="A kernel that changes its memory needs up to twice of it during a save. Suspend it instead, which needs"
                " no second copy; or free memory, or save when it is idle.",
                details=f"{self._left >> 20} MB were left; {error.details}",
            ) from error

    def _watch(self) -> None:
        available = processes.AvailableMemory(self._pid)
        while not self._end.wait(_LOOK_SECONDS):
            self._left = available.read_bytes()
            if self._left < self._headroom:
                logger.warning("%d MB of memory are left: the save is given up", self._left >> 20)
                self._ghost.drop()
                return
